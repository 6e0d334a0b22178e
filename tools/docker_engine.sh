#!/bin/sh
# A Docker engine for the tests, from Debian's packages, unpacked below one folder and with a socket of its own there.
#
#   tools/docker_engine.sh FOLDER start    exit code 3, with a reason, where this machine can run none
#   tools/docker_engine.sh FOLDER stop     ends the daemon that was started there
#
# FOLDER/env then sets what the client needs. Nothing outside FOLDER is changed; it needs root.
set -eu
folder=$1
root=$folder/root
socket=$folder/docker.sock
pidfile=$folder/docker.pid

cannot() {
  echo "no Docker engine here: $1" >&2
  exit 3
}

answers() {
  docker --host "unix://$socket" version >/dev/null 2>&1
}

if [ "$2" = stop ]; then
  if [ -s "$pidfile" ]; then kill "$(cat "$pidfile")" 2>/dev/null || true; fi
  tries=0
  while [ -e "$pidfile" ] && [ "$tries" -lt 30 ]; do  # the daemon removes it at its end
    tries=$((tries + 1))
    sleep 1
  done
  for mount in "$folder"/exec/netns/*; do umount "$mount" 2>/dev/null || true; done  # it leaves one, which holds FOLDER
  exit 0
fi

[ "$(id -u)" = 0 ] || cannot "it needs root"
command -v apt-get >/dev/null || cannot "its packages are Debian's, and there is no apt-get"
mkdir -p "$folder/packages" "$root"
if [ ! -x "$root/usr/sbin/dockerd" ]; then
  (
    cd "$folder/packages"
    apt-get update -qq && apt-get download -qq docker.io containerd runc tini iptables libip4tc2 libip6tc2 libxtables12 \
      libnetfilter-conntrack3 libnfnetlink0 libdevmapper1.02.1 libseccomp2
  ) >"$folder/packages.log" 2>&1 || cannot "its packages cannot be had ($folder/packages.log)"
  for package in "$folder"/packages/*.deb; do dpkg -x "$package" "$root"; done
fi
machine=$(uname -m)-linux-gnu
{
  echo "export PATH=$root/usr/bin:$root/usr/sbin:\$PATH"
  echo "export LD_LIBRARY_PATH=$root/lib/$machine:$root/usr/lib/$machine"
  echo "export DOCKER_HOST=unix://$socket"
} >"$folder/env"
. "$folder/env"
answers && exit 0
rm -f "$pidfile"
nohup setsid dockerd --iptables=false --ip6tables=false --ip-forward=false --bridge=none --host "unix://$socket" \
  --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$pidfile" >"$folder/dockerd.log" 2>&1 &
tries=0
until answers; do
  tries=$((tries + 1))
  [ "$tries" -lt 60 ] || cannot "its daemon does not answer ($folder/dockerd.log)"
  sleep 1
done
