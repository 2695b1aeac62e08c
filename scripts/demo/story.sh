#!/usr/bin/env bash
# The five-minute story of the demo, in the small internet that it makes: an agent on a real model wire mends a repository. It reaches
# its model's provider and a package index and nothing else, never holds a key, and goes on when its server is killed.
# The provider is a stand-in on this host; the index is good.test. Called by demo.sh. usage: story.sh FIRST_STEP DIRECTORY SEEN
# Exits with the number of failed checks.
set -uo pipefail
steps=$(($1 - 1))
data=$2/data
seen=$3
repository=$2/project
# shellcheck source=scripts/demo/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# For the world alone: a server refuses settings that it does not know.
unset SAGGAR_WORLD_FILES

cleanup() {
    end_server
    [[ -z ${provider-} ]] || { kill "$provider" && wait "$provider"; } 2>/dev/null
}
trap cleanup EXIT
trap 'exit 130' INT TERM

mkdir -p "$repository" "$data"
printf 'def is_leap(year):\n    return year %% 4 == 0\n' >"$repository/leap.py"
cat >"$repository/test_leap.py" <<'TEST'
import time

import centuries
import leap

with open("/tmp/test.log", "a") as log:
    log.write("the test began\n")
for year in centuries.around(1900):
    assert leap.is_leap(year) == (year == 1896 or year == 1904), year
time.sleep(1)
print("every year is right")
TEST
git -C "$repository" init --quiet
git -C "$repository" add .
git -C "$repository" -c user.name=demo -c user.email=demo@example.com commit --quiet --message 'A program with a mistake'

coproc PROVIDER { exec python3 "$here/provider.py" 203.0.113.10 8443 the-provider-key "$2/asked"; }
provider=$PROVIDER_PID
read -r _ <&"${PROVIDER[0]}"
cat >"$2/models.toml" <<'MODELS'
[providers.stand-in]
kind = "compatible"
url = "https://api.good.test:8443/v1"
keys = ["provider"]

[models.coder]
targets = [{ provider = "stand-in", model = "mender-1", prices = { input = "3", output = "15" } }]
MODELS
cat >"$2/coder.toml" <<'AGENT'
name = "coder"
task = "Make the test pass."

[model]
route = "coder"

[tools]
shell = { timeout = "1m" }
files = {}
edit = {}

[sandbox]
network = "proxied"
egress = { allow = ["GET good.test/simple/**"] }

[budget]
steps = 50
micros = 1000000
AGENT

tell "The five-minute story. An agent with a real model's wire is to mend a repository. The server holds the provider's key."
serve 0 --models-file "$2/models.toml" --socket "$2/socket"
SAGGAR_API_KEY=$(grep -o 'sgr_[A-Za-z0-9_-]*' "$data/printed" | head -n1)
export SAGGAR_API_KEY SAGGAR_URL="unix:$2/socket"
show saggar secret set provider --bind api.good.test:8443 --slot bearer '<' key
saggar secret set provider --bind api.good.test:8443 --slot bearer <<<'the-provider-key' >/dev/null
try 0 saggar models check

tell "The agent works on a copy of the repository. In the middle of its test, its server is killed; the next one goes on."
cd "$2" || exit 1
show saggar agent run --agent coder.toml --workspace ./project '&'
timeout "$patience" saggar agent run --agent coder.toml --workspace ./project >"$2/followed" 2>&1 &
following=$!
check "the agent has mended the program in its copy" kept "$2/followed" 'replaced once'
kill_server
serve "$port" --models-file "$2/models.toml" --socket "$2/socket"
check "the run went on to its end" wait "$following"
output=$(cut -c1-140 "$2/followed")
sed "s/^/   ${dim}| /; s/\$/${plain}/" <<<"$output"
check "it says what it did" said 'The test passes: 1900 was no leap year'
check "what it tried beside that was denied" said 'denied'

tell "What left the sandbox: a package from the index. The provider was asked by the server, with a key that the sandbox never had."
check "the index was asked" grep -q '/simple/centuries/' "$seen"
check "nothing reached the other host" test "$(grep -c 'evil\|203.0.113.11' "$seen")" -eq 0
check "every request to the provider had the key" test "$(grep -c '"has_key": false' "$2/asked")" -eq 0
check "the key is in no file of the server" test -z "$(grep -rl the-provider-key "$data")"

tell "The repository is as it was, until the changes are read and applied."
check "the program still has its mistake" grep -q 'return year % 4 == 0$' "$repository/leap.py"
sandbox=$(grep -o 'saggar changes diff.* sbx_[a-z2-7]*' "$2/followed" | grep -o 'sbx_[a-z2-7]*' | head -n1)
try 0 saggar changes diff --server "$sandbox" leap.py
check "the diff shows one line" said '^\+    return year % 4 == 0 and'
try 0 saggar changes apply --server "$sandbox" leap.py
check "the program is mended" grep -q 'year % 400' "$repository/leap.py"
exit "$failures"
