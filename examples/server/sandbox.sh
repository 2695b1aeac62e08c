#!/usr/bin/env bash
# Creates a sandbox over HTTP, runs a program in it, writes and reads a file, and ends it.
set -euo pipefail

url=${SAGGAR_URL:-http://127.0.0.1:7420}/api/v1/sandboxes
call() { curl --silent --show-error --fail-with-body -H "Authorization: Bearer $SAGGAR_API_KEY" "$@"; }
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]], end="")' "$1"; }

id=$(call -X POST "$url" -H 'Content-Type: application/json' -d '{"ttl": "10m", "limits": {"memory": "256M"}}' | field id)
echo "created $id"

answer=$(call "$url/$id/execs" -H 'Content-Type: application/json' -d '{"command": ["python3", "-c", "print(6 * 7)"]}' | field stdout)
echo "program printed: $answer"

call -X PUT "$url/$id/files?path=notes.txt" -H 'Content-Type: application/octet-stream' --data-binary 'hello' >/dev/null
echo "file contains: $(call "$url/$id/files?path=notes.txt")"

call -X DELETE "$url/$id" | field state
echo
