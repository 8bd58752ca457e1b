#!/bin/bash
# get.sh DIR: puts QEMU for x86_64, a kernel for its guests, a static busybox and the programs of NFS into DIR/root.
# Nothing is installed on this machine: the packages are Debian's, from the configured mirror, and only unpacked.
# Debian 12 has them newer in its backports, which also fit to the qemu-utils of backports.
set -eu
dir=$1
packages=(qemu-system-x86 linux-image-cloud-amd64 busybox-static nfs-kernel-server nfs-common)

mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
dir=$(readlink -f "$dir")
. /etc/os-release
suite=${VERSION_CODENAME:?no release of Debian}
if [ "$suite" = bookworm ]; then suites="bookworm bookworm-backports"; else suites=$suite; fi
for each in $suites; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $each main"
done >"$dir/sources.list"
cat >"$dir/apt.conf" <<END
Dir::Etc::SourceList "$dir/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$dir/lists";
Dir::Cache "$dir/cache";
Debug::NoLocking "1";
Acquire::Retries "1";
APT::Sandbox::User "";
END
export PATH=$PATH:/usr/sbin:/sbin APT_CONFIG="$dir/apt.conf" DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --download-only --no-install-recommends -t "${suites##* }" "${packages[@]}"
rm -rf "$dir/unpacking"
for package in "$dir"/cache/archives/*.deb; do
    dpkg-deb -x "$package" "$dir/unpacking"
done
# The order in which modules are loaded; a package that was on the machine already has it.
for modules in "$dir"/unpacking/{,usr/}lib/modules/*-cloud-amd64; do
    [ ! -d "$modules" ] || depmod -b "${modules%/lib/modules/*}" "${modules##*/}"
done
# A later version of this script gets the packages again.
cp "$0" "$dir/unpacking/get.sh"
rm -rf "$dir/root" "$dir/cache" "$dir/lists"
mv "$dir/unpacking" "$dir/root"
