#!/usr/bin/env bash
# Checks the promise of the README on a bare Debian 12. Makes one with debootstrap, copies the committed tree into it and runs
# the two commands as a newcomer would. Needs root and debootstrap.
#
#   tools/check_bare_debian.sh [FOLDER [MIRROR]]
#
# FOLDER is created, and removed at the end (default: a temporary one). MIRROR is http://deb.debian.org/debian by default.
#
# Prints the time of each command, the seconds of each module's compilation, and the answer. Exit status 0 only if both commands succeed,
# the answer names Paris, and the first took at most MAX_SECONDS. Its 300 are meant for two cores that do nothing else.
set -euo pipefail

fail() { printf 'check_bare_debian: %s\n' "$*" >&2; exit 1; }

root="$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
((EUID == 0)) || fail "needs root, for debootstrap and chroot"
command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
jail=${1:-$(mktemp -d)}
mkdir -p "$jail"
mirror=${2:-http://deb.debian.org/debian}

clean_up() {
  umount "$jail/dev/pts" "$jail/sys" "$jail/proc" 2>/dev/null || true
  rm -rf --one-file-system "$jail"
}
trap clean_up EXIT

echo "debootstrap of bookworm"
debootstrap --variant=minbase bookworm "$jail" "$mirror" >"$jail.log" 2>&1 || { tail "$jail.log"; fail "debootstrap"; }
rm -f "$jail.log"
cp /etc/resolv.conf "$jail/etc/resolv.conf"
# Parts that every installation has and debootstrap does not make: a name for this machine, and memory by node in /sys.
printf '127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n' >"$jail/etc/hosts"
mount -t proc proc "$jail/proc"
mount -t sysfs -o ro sysfs "$jail/sys"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$jail/dev/pts"  # The chat is tested on a pseudo terminal.
ln -sf pts/ptmx "$jail/dev/ptmx"
mkdir -p "$jail/root/dsv4"
git -C "$root" archive HEAD | tar -x -C "$jail/root/dsv4"

inside() {
  chroot "$jail" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin CI=true bash -c "cd && cd dsv4 && $1" </dev/null
}

start=$SECONDS
answer=$(inside './dev run "What is the capital of France?"') || fail "./dev run failed"
took=$((SECONDS - start))
echo "./dev run: $took s on $(nproc) processors: $answer"
python3 "$root/tools/build_seconds.py" "$jail/root/dsv4/build/release" --target dsv4-run
[[ $answer == *Paris* ]] || fail "the answer does not name Paris"
((took <= ${MAX_SECONDS:-300})) || fail "the first command took $took s, wanted at most ${MAX_SECONDS:-300}"
start=$SECONDS
inside './dev run "What is the capital of France?"' >/dev/null || fail "the second ./dev run failed"
echo "./dev run, again: $((SECONDS - start)) s"
start=$SECONDS
inside './dev test' || fail "./dev test failed"
echo "./dev test: $((SECONDS - start)) s"
