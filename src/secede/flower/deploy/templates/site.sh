#!/bin/sh
# Starts the SuperNode of one site: ./site.sh NAME [PARTITION]; each site has a partition of its own.
set -eu
umask 077
cd "$(dirname "$0")"
. ./environment.sh
place=0
for site in $SITES; do
  [ "$site" != "${1:-}" ] || break
  place=$((place + 1))
done
if [ "$place" -ge @SITES@ ]; then
  echo "no site '${1:-}': expected one of $SITES" >&2
  exit 2
fi
for private in home certificates/server.key; do
  if [ -r "$private" ]; then
    echo "a run's code can read $PWD/$private in this account: start $1 in one of its own" >&2
  fi
done
export FLWR_HOME="$PWD/flower/$1"
mkdir -p "sites/$1"
key="$PWD/sites/$1/$1.key"  # of `secede keygen`: signs what the site's canaries say
[ -e "$key" ] && signer=" secede-key=\"$key\"" || signer=""
program=$(command -v flower-supernode)
python=$(sed -n "1s/^#! *//p" "$program")  # that it is installed for, secede with it
exec "$python" -m secede.flower.deploy.port_guard "$program" \
  --root-certificates certificates/ca.crt --superlink "$SUPERLINK" \
  --auth-supernode-private-key "nodes/$1.key" --port "${NODE_PORT:-9094}" --node-config \
  "partition-id=${2:-$place} num-partitions=@SITES@ site=\"$1\" secede-folder=\"$PWD/sites/$1\"$signer"
