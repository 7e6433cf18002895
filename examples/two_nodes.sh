#!/usr/bin/env bash
# Two nodes on this machine: A computes a document, B pulls it and grafts it, then B computes and pushes to A.
#
#     examples/two_nodes.sh MODEL DOCUMENT.txt
#
# MODEL is a name from `kvsync model ls` or a model directory. Everything lives in a temporary directory and
# is removed at the end. On two real machines the commands are the same; only keys and addresses travel.
set -euo pipefail
model=$1
document=$2
work=$(mktemp -d)

a() { kvsync --home "$work/a" --quiet "$@"; }
b() { kvsync --home "$work/b" --quiet "$@"; }
field() { python3 -c 'import functools, json, sys
print(functools.reduce(lambda found, key: found[key], sys.argv[1:], json.load(sys.stdin)))' "$@"; }

cleanup() {
    a daemon stop >/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

a init
b init
a daemon start
address=$(a daemon status --json | field address)

# What people tell each other once, over a channel they trust: keys, and where A listens.
a peer add node-b "$(b keys show --json | field peer key)" --role get --role push
a trust add node-b "$(b keys show --json | field signer key)"
b peer add node-a "$(a keys show --json | field peer key)" --address "$address"
b trust add node-a "$(a keys show --json | field signer key)"

a compute "$document" --model "$model" --name team/handbook
b pull node-a team/handbook --dry-run
b pull node-a team/handbook --model "$model"
b verify team/handbook
b graft team/handbook --model "$model" --question " In short:" --tokens 8

# The other way round: A lets node-b push.
head -c 200 "$document" | b compute - --model "$model" --name team/excerpt
b push node-a team/excerpt
a ls
