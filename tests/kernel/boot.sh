#!/bin/bash
# boot.sh DIR SCRIPT [IMAGE...]: runs SCRIPT in a real Linux (User-Mode Linux, an ordinary process) and ends with its
# exit status. The guest's root is the host's, read-only. DIR is /mnt in the guest, writable, and the script's
# working directory. Images are /dev/ubda, /dev/ubdb and so on; sockets of vhost-user disks are /dev/vda and so on.
# Debian packages: user-mode-linux, kmod, a C compiler, and whatever the script calls.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=$(readlink -f "$1") script=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cc -shared -fPIC -O2 -Wall -o "$work/xstate.so" "$here/xstate.c" -ldl

# modprobe looks for /lib/modules/VERSION below its root; Debian ships the guest's modules elsewhere.
mkdir -p "$work/root/lib"
ln -s /usr/lib/uml/modules "$work/root/lib/modules"
printf '#!/bin/sh\nexec modprobe -d "%s" "$@"\n' "$work/root" >"$work/modprobe"
chmod +x "$work/modprobe"

disks=()
for image in "$@"; do
    if [ -S "$image" ]; then
        # Type 2 is a block device.
        disks+=("virtio_uml.device=$(readlink -f "$image"):2")
    else
        disks+=("ubd${#disks[@]}=$(readlink -f "$image")")
    fi
done

# con0 carries the guest's output; the marker lines tell it from the kernel's own words.
LD_PRELOAD="$work/xstate.so" timeout -k 5 "${BOOT_LIMIT_S:-150}" linux.uml mem=512M \
    rootfstype=hostfs ro init="$here/guest-init" "${disks[@]}" con=null con0=fd:0,fd:1 quiet loglevel=2 \
    guest_work="$work" guest_dir="$dir" guest_script="$script" </dev/null >"$work/console" 2>&1 || true
tr -d '\r' <"$work/console" | sed -n '/^@@ guest/,$p'
status=$(tr -d '\r' <"$work/console" | sed -n 's/^@@ status \([0-9]*\)$/\1/p' | tail -n 1)
if [ -z "$status" ]; then
    echo "the guest did not reach its end; its console:"
    tail -n 20 "$work/console"
    status=125
fi
exit "$status"
