//! Options of `qemu-nbd` and `nbdkit` that this server has under another name, or does not have.
//!
//! A user who types one of them is told ours. A letter that is an option of cryptsetup has its
//! meaning there: its entry is that of our option, for a value that does not fit.

use std::ffi::OsStr;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::ServeArgs;
use crate::failure::Failure;

/// Spellings of options, and what to do instead.
const UNKNOWN: &[(&[&str], &str)] = &[
    (
        &["-i", "--ipaddr", "--bind", "--port", "-4", "-6", "--ipv4-only", "--ipv6-only"],
        "a TCP address is --listen HOST:PORT; 127.0.0.1 and [::1] are this machine",
    ),
    (&["--vsock"], "VSOCK is not supported; use --listen HOST:PORT or --vhost-user PATH"),
    (
        &["-e"],
        "the name of the export (nbdkit) is --export-name NAME; the limit of clients (qemu-nbd) is \
         --max-connections N",
    ),
    (&["--exportname"], "the name of the export is --export-name NAME"),
    (
        &["-t", "--persistent"],
        "the server stays until a signal comes, or until the command of --run ends; threads \
         (nbdkit) are --threads N",
    ),
    (&["--handshake-limit"], "the limit of a handshake is 10 seconds"),
    (
        &["--fork"],
        "the server stays in the foreground; a service manager starts it in the background, as in \
         `systemd-run --user blockyard serve …`, and --pid-file PATH shows that it is ready",
    ),
    (
        &["-f", "--foreground", "--format", "--image-opts"],
        "the server always stays in the foreground, and finds the format of the volume itself, or \
         by --type TYPE; for images such as qcow2, see `blockyard info IMAGE`",
    ),
    (
        &["-P", "--pidfile"],
        "the file with the process ID (nbdkit) is --pid-file PATH; a partition (old qemu-nbd) is \
         --partition N",
    ),
    (
        &["-n", "--nocache", "--cache", "--newstyle", "-N"],
        "the page cache is bypassed with --direct; the newstyle protocol is always spoken",
    ),
    (&["--oldstyle", "--no-sr", "--mask-handshake"], "clients choose from the newstyle protocol"),
    (&["--aio"], "the server chooses the way of access to each file; see --direct"),
    (&["--discard"], "TRIM is passed down with --allow-discards"),
    (&["--detect-zeroes"], "zeroes are not searched for in writes: they are encrypted too"),
    (
        &["-g", "--group", "-u", "--user"],
        "sockets are given away with --socket-owner USER and --socket-group GROUP; to run as \
         another user, start the server with `sudo -u USER` or User= of systemd",
    ),
    (&["--selinux-label"], "labels are not set; give one to the folder of the socket with chcon"),
    (
        &["--connect"],
        "the kernel's client connects with `sudo nbd-client -unix SOCKET /dev/nbd0`, after the \
         server has started with --socket SOCKET",
    ),
    (&["--disconnect"], "the kernel's client disconnects with `sudo nbd-client -d /dev/nbd0`"),
    (&["-L", "--list"], "`blockyard info URI` lists the exports of a server"),
    (
        &["-D", "--description", "--debug", "-v", "--verbose", "-T", "--log", "--dump-config"],
        "messages go to standard error; `blockyard status`, `top` and `trace` observe a server \
         with --control PATH, and the description of an export is that of its volume",
    ),
    (
        &[
            "--filter",
            "--snapshot",
            "--load-snapshot",
            "-A",
            "--allocation-depth",
            "-B",
            "--bitmap",
        ],
        "filters and snapshots are not supported, and a dirty bitmap is --dirty-bitmap; a \
         device-mapper table with --table FILE puts targets over a volume, and --read-only \
         protects it",
    ),
    (&["--single"], "a client on standard input is not supported; use --run COMMAND"),
    (
        &["--tls-creds"],
        "the certificates for TLS are those of a folder: --tls-certificates DIR, with QEMU's names",
    ),
    (
        &["--tls-psk"],
        "TLS with pre-shared keys is not supported; `blockyard tls init` makes certificates for \
         --tls-certificates DIR",
    ),
    (
        &["--tls-hostname"],
        "a server has no name to check; clients check it: `tls-hostname` in a URI",
    ),
    (&["--object"], "the key comes from --key-file FILE, --key-fd N or --key-command COMMAND"),
    (&["--swap"], "a volume for swap needs nothing; keys are always locked in memory"),
    (&["--dump-plugin"], "there are no plugins; `blockyard serve --help` lists the options"),
];

/// Our options whose letter, or name, has another meaning there.
const OTHER_MEANING: &[(&str, &str)] = &[
    ("--shared", "--shared takes no value; the limit of clients is --max-connections N"),
    ("--size", "-b is --size SECTORS here; the address to bind is --listen HOST:PORT"),
    ("--skip", "-p is --skip SECTORS here; a TCP port is --listen HOST:PORT"),
    ("--key-size", "-s is --key-size BITS here; snapshots and `-s` of nbdkit are not supported"),
    ("--keyfile-size", "-l is --keyfile-size SIZE here; snapshots are not supported"),
    ("--offset", "-o is --offset here, in sectors of 512 bytes"),
    ("--threads", "--threads N is a number of cipher workers here"),
];

/// The sentence for an error of the parser, if it has an option of these programs.
pub(crate) fn explained(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else { return None };
    let option = shown.split([' ', '=']).next()?;
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let (_, instead) = UNKNOWN.iter().find(|(names, _)| names.contains(&option))?;
            Some(format!("{option} is no option here: {instead}"))
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation | ErrorKind::TooManyValues => {
            let (_, meaning) = OTHER_MEANING.iter().find(|(name, _)| *name == option)?;
            let value = match error.get(ContextKind::InvalidValue) {
                Some(ContextValue::String(value)) => value.as_str(),
                _ => "",
            };
            Some(format!("{option}: the value {value:?} does not fit; {meaning}"))
        }
        _ => None,
    }
}

/// A failure to name the volume, with a hint if options have the values of these programs.
pub(super) fn hinted(failure: Failure, args: &ServeArgs) -> Failure {
    let is_device = |value: &OsStr| value.as_encoded_bytes().starts_with(b"/dev/nbd");
    let volume = &args.volume;
    let hint = if volume.plain.cipher.as_ref().is_some_and(|cipher| is_device(cipher.as_ref())) {
        "to connect the kernel's client: `sudo nbd-client -unix SOCKET /dev/nbd0`"
    } else if volume.volume.is_none()
        && volume.plain.cipher.as_ref().is_some_and(|cipher| Path::new(cipher).exists())
    {
        "-c is --cipher here: name an image without an option in front of it, and a configuration \
         with --config FILE"
    } else if volume.key.key_file.as_ref().is_some_and(|path| is_device(path.as_ref())) {
        "to disconnect the kernel's client: `sudo nbd-client -d /dev/nbd0`"
    } else if volume.plain.skip.is_some() && failure.message.starts_with("--skip") {
        "a TCP port is --listen HOST:PORT"
    } else {
        return failure;
    };
    Failure { message: format!("{}; {hint}", failure.message), ..failure }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::args::definition;

    /// `qemu-nbd --help` of QEMU 10.0 and `nbdkit --help` of nbdkit 1.42.
    const ALL: &str = "-p --port -b --bind -k --socket -e --shared -t --persistent -v --verbose -x \
        --export-name -D --description --handshake-limit -o --offset -A --allocation-depth \
        -B --bitmap -L --list --object -T --trace --fork --pid-file --selinux-label -c \
        --connect -d --disconnect -f --format -r --read-only -s --snapshot -l \
        --load-snapshot -n --nocache --cache --aio --discard --detect-zeroes --image-opts -4 \
        --ipv4-only -6 --ipv6-only --debug --exit-with-parent --exportname --filter \
        --foreground -g --group -i --ipaddr --log --mask-handshake --newstyle --no-sr \
        --oldstyle -P --pidfile --readonly --run --single --swap --threads -U --unix -u \
        --user --vsock --dump-config --dump-plugin --tls --tls-certificates --tls-verify-peer \
        --tls-authz --tls-creds --tls-psk --tls-hostname";

    /// All spellings of the options of `serve`.
    fn ours() -> BTreeSet<String> {
        let definition = definition();
        let serve = definition.find_subcommand("serve").unwrap();
        let mut ours = BTreeSet::new();
        for option in serve.get_arguments() {
            let letters = option.get_all_short_aliases().into_iter().flatten();
            ours.extend(option.get_short().into_iter().chain(letters).map(|c| format!("-{c}")));
            ours.extend(option.get_long().map(|name| format!("--{name}")));
            let aliases = option.get_all_aliases().into_iter().flatten();
            ours.extend(aliases.map(|name| format!("--{name}")));
        }
        ours
    }

    fn unknown() -> impl Iterator<Item = &'static str> {
        UNKNOWN.iter().flat_map(|(names, _)| names.iter().copied())
    }

    #[test]
    fn every_option_of_both_programs_is_ours_or_is_explained() {
        let ours = ours();
        for option in ALL.split_whitespace() {
            let is_explained = unknown().any(|name| name == option);
            assert!(ours.contains(option) != is_explained, "{option}");
        }
    }

    #[test]
    fn explanations_name_options_that_exist() {
        let ours = ours();
        assert!(OTHER_MEANING.iter().all(|(name, _)| ours.contains(*name)));
        let sentences = UNKNOWN.iter().map(|(_, sentence)| *sentence);
        for sentence in sentences.chain(OTHER_MEANING.iter().map(|(_, sentence)| *sentence)) {
            // Between backquotes is another command.
            for word in sentence.split('`').step_by(2).flat_map(str::split_whitespace) {
                let word = word.trim_end_matches([',', ';', '`']);
                assert!(!word.starts_with("--") || ours.contains(word), "{word} in {sentence:?}");
            }
        }
    }
}
