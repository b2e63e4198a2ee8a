#!/bin/sh
# Starts the SuperLink: TLS, sites known by their keys, nothing installed while it runs.
set -eu
umask 077
cd "$(dirname "$0")"
. ./environment.sh
export FLWR_HOME="$PWD/flower/superlink"
mkdir -p state
program=$(command -v flower-superlink)
python=$(sed -n "1s/^#! *//p" "$program")  # that it is installed for, secede with it
exec "$python" -m secede.flower.deploy.port_guard "$program" \
  --ssl-ca-certfile certificates/ca.crt --ssl-certfile certificates/server.crt \
  --ssl-keyfile certificates/server.key --enable-supernode-auth \
  --disable-runtime-dependency-installation --host "$LISTEN" --port "$PORT" \
  --database state/superlink.db
