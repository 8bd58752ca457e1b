# Runs in the guest: opens each volume of ./plan with the real dm-crypt, tells what it reads, and writes.
#   plan: one volume a line: JOB NAME DEVICE STDIN OPTIONS...    (STDIN: a file, or - for nothing)
# For each it prints "@ NAME read SHA256" or "@ NAME failed WHY", and leaves NAME.table as dmsetup shows it.
#   raw:  overwrites one MiB at 4 MiB with ./kernel.noise
#   ext4: makes a file system and copies the files of ./tree into it
open_volume() {
    if [ "$stdin" = - ]; then stdin=/dev/null; fi
    # The keyring would hide the key from dmsetup's table.
    # shellcheck disable=SC2086  # options are words
    cryptsetup open --disable-keyring $options "/dev/$device" "$name" <"$stdin"
}

write_raw() {
    dd if=kernel.noise of="/dev/mapper/$name" bs=1M seek=4 conv=fsync,notrunc status=none
}

write_ext4() {
    mkdir -p /run/fs && mkfs.ext4 -q -F "/dev/mapper/$name" && mount "/dev/mapper/$name" /run/fs &&
        cp -r tree /run/fs/ && umount /run/fs
}

exchange() {
    open_volume && sha=$(sha256sum <"/dev/mapper/$name") && echo "@ $name read ${sha%% *}" &&
        dmsetup table --showkeys "$name" >"$name.table" && "write_$job" && cryptsetup close "$name"
}

while read -r job name device stdin options; do
    exchange 2>errors </dev/null || echo "@ $name failed $(tr '\n' ' ' <errors)"
done <plan
echo "@ done"
