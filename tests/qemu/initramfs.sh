#!/bin/bash
# initramfs.sh ROOT WORK OUT: writes the guest's root as the archive OUT: the busybox and the block drivers of ROOT,
# tools of this machine, and the files of WORK as the folder of the script. A file named blockyard gets its libraries.
# Scripts of WORK name more of both in lines of comments, "programs: NAME..." and "modules: NAME...". The guest finds the
# modules in /modules, in the order in which they are loaded.
set -eu
PATH=$PATH:/usr/sbin:/sbin
here=$(cd "$(dirname "$0")" && pwd)
root=$(readlink -f "$1") work=$2 out=$3
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

# A package of ROOT may have been on the machine already; then it is the machine's.
found() { find "$root/$1" "$root/usr/$1" "/$1" -maxdepth 1 -name "$2" -print -quit 2>/dev/null || true; }
busybox=$(found bin busybox)
modules=$(found lib/modules '*-cloud-amd64')

mkdir -p "$tree"/{bin,dev,etc,modules,proc,run,sbin,sys,usr/sbin,case}
cp "$busybox" "$tree/bin/busybox"
ln -s busybox "$tree/bin/sh"
cp "$here/guest-init" "$tree/init"
for driver in virtio_blk ublk_drv; do
    xz -dc "$modules/kernel/drivers/block/$driver.ko.xz" >"$tree/$driver.ko"
done
cp /etc/mke2fs.conf "$tree/etc/"
with_libraries() {
    LD_LIBRARY_PATH=$2 ldd "$1" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$tree$(dirname "${library#"$root"}")"
        cp -L "$library" "$tree${library#"$root"}"
    done
}
for tool in mke2fs e2fsck blkdiscard dd setpriv; do
    path=$(PATH=$PATH:/usr/sbin:/sbin command -v "$tool")
    cp "$path" "$tree/usr/sbin/"
    with_libraries "$path" ""
done
if [ -e "$work/blockyard" ]; then with_libraries "$work/blockyard" ""; fi
wanted() { sed -n "s/^# $1: //p" "$work"/*.sh; }
for program in $(wanted programs); do
    path=$(found sbin "$program")
    cp "$path" "$tree/usr/sbin/"
    with_libraries "$path" "$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu"
done
netconfig=$(found etc netconfig)
[ -z "$netconfig" ] || cp "$netconfig" "$tree/etc/"
number=100
for module in $(wanted modules); do
    for file in $(modprobe -d "${modules%/lib/modules/*}/" -S "${modules##*/}" --show-depends "$module" |
        sed -n 's/^insmod //p'); do
        name=$(basename "$file" .ko.xz)
        if ! compgen -G "$tree/modules/*-$name.ko" >/dev/null; then
            xz -dc "$file" >"$tree/modules/$number-$name.ko"
            number=$((number + 1))
        fi
    done
done
ln -s mke2fs "$tree/usr/sbin/mkfs.ext4"
cp -r "$work/." "$tree/case/"
(cd "$tree" && find . | "$busybox" cpio -o -H newc 2>/dev/null) >"$out"
