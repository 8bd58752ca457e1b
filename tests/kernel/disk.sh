# Runs in the guest: uses the virtio disk /dev/vda, whose back end is our server.
# It makes a file system, copies the files of ./tree into it, and checks it. It prints "@ disk read SHA256" of the whole
# disk, or "@ disk failed WHY".
disk=/dev/vda

use_disk() {
    # A part of a block, and a range that is dropped, before the file system.
    dd if=kernel.noise of="$disk" bs=4096 seek=3 count=200 oflag=direct conv=notrunc status=none &&
        mkfs.ext4 -q -F "$disk" && mkdir -p /run/fs && mount "$disk" /run/fs && cp -r tree /run/fs/ &&
        dd if=kernel.noise of=/run/fs/synced bs=64k conv=fsync status=none &&
        cmp kernel.noise /run/fs/synced && umount /run/fs && e2fsck -fn "$disk" >/dev/null &&
        sha=$(sha256sum <"$disk") && echo "@ disk read ${sha%% *}"
}

use_disk 2>errors </dev/null || echo "@ disk failed $(tr '\n' ' ' <errors)"
echo "@ done"
