import json
import sys

words = len(open(sys.argv[1]).read().split())
print(f"{words} words")
with open("result.json", "w") as result:
    json.dump({"words": words}, result)
    result.write("\n")
