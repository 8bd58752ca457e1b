# A reader at a terminal, for pages that ask for passphrases and start servers in the foreground: types
# the passphrase, gives each server a terminal of its own and ends it with SIGTERM before the next
# one, and watches what has no end for a moment. Key derivations are cheap.
passphrase='correct horse'
umask 077
export XDG_RUNTIME_DIR=$HOME/run
mkdir -p "$XDG_RUNTIME_DIR"
program=$(type -P blockyard)

# Words of the page for this machine and for less time, as a script of sed.
stand_ins='s/127\.0\.0\.1:9100/127.0.0.1:'$((20000 + $$ % 20000))'/'
stand_in() {
    local word
    words=()
    for word; do words+=("$(sed -E "$stand_ins" <<<"$word")"); done
}
stands_in() {
    local name
    for name; do eval "$name() { stand_in \"\$@\"; command $name \"\${words[@]}\"; }"; done
}

blockyard() {
    local words
    stand_in "$@"
    case " $* " in
    *' --help '* | *' -h '* | *' --pbkdf '*) ;;
    ' format '* | ' key add '* | ' key change '* | ' key convert '*)
        words+=(--pbkdf pbkdf2 --pbkdf-force-iterations 1000)
        ;;
    esac
    case " $* " in
    *' --run '*) typed "${words[@]}" ;;
    ' serve '*) serve ;;
    ' tune '*)
        [[ " $* " == *' --time '* ]] || words=(tune --time 2 "${words[@]:1}")
        typed "${words[@]}"
        ;;
    ' top '*) timeout -s INT 2 "$program" "${words[@]}" || [ $? = 124 ] ;;
    *) typed "${words[@]}" ;;
    esac
}

# Without other input, the passphrase is typed where it is asked for.
typed() {
    if [ /dev/stdin -ef /dev/null ]; then
        "$program" "$@" <<<"$passphrase"$'\n'"$passphrase"$'\n'"$passphrase"
    else
        "$program" "$@"
    fi
}

# Further words of a page's servers.
more=()
server=
servers=0
serve() {
    if [ "$BASHPID" != $$ ]; then
        exec "$program" "${words[@]}" <<<"$passphrase"
    fi
    leave
    servers=$((servers + 1))
    words+=("${more[@]}" --pid-file "$HOME/pid.$servers")
    "$program" "${words[@]}" <<<"$passphrase" >"$HOME/served" 2>&1 &
    server=$!
    until [ -e "$HOME/pid.$servers" ]; do
        if ! kill -0 "$server" 2>/dev/null; then
            cat "$HOME/served"
            wait "$server"
            return
        fi
        sleep 0.05
    done
    cat "$HOME/served"
}

# A server ends in order, with success.
leave() {
    if [ -n "$server" ]; then
        kill "$server"
        wait "$server"
        server=
    fi
}

# A machine starts with its disks, and is turned off. QEMU is the one that `cargo x interop` has
# unpacked, or the installed one.
qemu-system-x86_64() {
    local words
    stand_in "$@"
    local machine=(-nodefaults -display none -monitor stdio)
    if [ -d "$qemu" ]; then
        LD_LIBRARY_PATH=$qemu/usr/lib/x86_64-linux-gnu "$qemu/usr/bin/qemu-system-x86_64" \
            -L "$qemu/usr/share/qemu" -L "$qemu/usr/share/seabios" "${machine[@]}" "${words[@]}" \
            <<<quit
    else
        # The QEMU of Debian 12 counts in seconds.
        command qemu-system-x86_64 "${machine[@]}" "${words[@]/reconnect-ms=500/reconnect=1}" <<<quit
    fi
}
