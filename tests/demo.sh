# The demo, run by ./x demo: an encrypted disk is made, served by an ordinary process, filled and read by a foreign
# NBD client, and checked. Uses say, note, fail and colours of ./x.
start=$SECONDS
data_mib=256
target=${CARGO_TARGET_DIR:-target}

say "Building blockyard, without the lab and for a short build"
cargo build --quiet --profile demo --locked --package blockyard-cli --no-default-features
built=$(readlink -f "$target/demo/blockyard")

# In memory where there is room: the figures are the cipher's, not the disk's.
place=${TMPDIR:-/tmp}
free_mib=$(df --output=avail -m /dev/shm 2>/dev/null | tail -n 1 || echo 0)
if [ "$free_mib" -gt $((data_mib * 5)) ] && [ -w /dev/shm ]; then place=/dev/shm; fi
lab=$(mktemp -d -p "$place" blockyard-demo.XXXXXX)
server=
cleanup() {
    if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; fi
    rm -rf "$lab"
}
trap cleanup EXIT
cd "$lab"

# Whoever runs this: the server is an ordinary process without root or any capability.
cp "$built" blockyard
blockyard=$lab/blockyard
ordinary=()
if [ "$(id -u)" = 0 ]; then
    ordinary=(setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs)
    chown 65534:65534 .
fi
step() { printf '%s\n' "${bold}\$ $*$off"; }

say "Making a file system of real files ($data_mib MiB of ext4)"
mkdir tree
cp -a "$OLDPWD/crates" "$OLDPWD/docs" tree/ 2>/dev/null
# Programs and documents of this machine, until it is three quarters full.
budget_kib=$((data_mib * 1024 * 3 / 4))
for source in /usr/share/doc /usr/share/perl /usr/share/locale /usr/lib/x86_64-linux-gnu /usr/bin; do
    [ -d "$source" ] || continue
    find "$source" -xdev -type f -readable -size -8192k -printf '%k %p\n' 2>/dev/null | sort -k2 |
        awk -v left=$((budget_kib - $(du -sk tree | cut -f1))) '{
            if (($1 + 4) > left) next; left -= $1 + 4; sub(/^[0-9]+ /, ""); print }' >list
    tar -cf - --ignore-failed-read -T list 2>/dev/null | tar -xf - -C tree 2>/dev/null || true
done
truncate -s "${data_mib}M" files.ext4
mke2fs -q -t ext4 -d tree files.ext4
note "  $(find tree -type f | wc -l) files, $(du -sm tree | cut -f1) MiB"
rm -rf tree list

say "An encrypted volume (LUKS2: cryptsetup and the kernel open it too)"
printf 'correct horse battery staple' >passphrase
step "blockyard format --size $((data_mib + 16))M --key-file passphrase disk.img"
"${ordinary[@]}" "$blockyard" format --size "$((data_mib + 16))M" --key-file passphrase disk.img

say "Served as a disk, by an ordinary process without root"
step "blockyard serve disk.img --key-file passphrase --socket disk.sock &"
"${ordinary[@]}" "$blockyard" serve disk.img --key-file passphrase --socket disk.sock >serve.log 2>&1 &
server=$!
until [ -S disk.sock ]; do
    kill -0 "$server" 2>/dev/null || fail "the server ended: $(cat serve.log)"
    sleep 0.05
done
uri="nbd+unix:///?socket=$lab/disk.sock"

# The server's CPU time in microseconds. The kernel shows it in ticks of 10 ms: little, over several copies.
cpu_us() {
    local user system ticks
    ticks=$(getconf CLK_TCK)
    read -r user system < <(sed 's/.*) //' "/proc/$server/stat" | cut -d' ' -f12,13)
    echo $(((user + system) * 1000000 / ticks))
}
now_us() { echo $(($(date +%s%N) / 1000)); }

# measured WHAT COMMAND...: runs a copy three times and prints the speed and CPU of all of them together.
measured() {
    local what=$1 rounds=3 before after began ended mib
    shift
    before=$(cpu_us) began=$(now_us)
    for _ in $(seq "$rounds"); do "$@"; done
    ended=$(now_us) after=$(cpu_us)
    mib=$((data_mib * rounds))
    printf '  %s%-12s%s %6d MiB/s   server CPU %4d us per MiB   (%d x %d MiB, encrypted)\n' "$green" "$what" "$off" \
        $((mib * 1000000 / (ended - began + 1))) $(((after - before) / mib)) "$rounds" "$data_mib"
}
copy_in() { nbdcopy --flush files.ext4 "$uri"; }
copy_out() { nbdcopy "$uri" back.ext4; }

say "Copied in and out by nbdcopy, a client that others wrote"
copy_in # pages that are touched for the first time are no measure
measured "written" copy_in
measured "read" copy_out

say "Checked"
truncate -s "${data_mib}M" back.ext4
cmp files.ext4 back.ext4 || fail "what came back is not what went in"
note "  byte for byte the same (cmp)"
e2fsck -fn back.ext4 >e2fsck.log 2>&1 || fail "e2fsck: $(cat e2fsck.log)"
note "  $(tail -n 1 e2fsck.log) (e2fsck)"
offset=$((16 << 20))
if cmp -s -i "0:$offset" -n 1048576 files.ext4 disk.img; then fail "disk.img holds plaintext"; fi
note "  the image on disk is something else"

kill -TERM "$server"
wait "$server" || fail "the server did not end well: $(cat serve.log)"
server=
say "${green}Done in $((SECONDS - start)) s.$off${bold} More: README.md, $target/demo/blockyard --help"
note "The full program, with lab, tune and report: cargo build --release --package blockyard-cli"
cd "$OLDPWD"
