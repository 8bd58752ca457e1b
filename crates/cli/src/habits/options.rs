//! The options of cryptsetup that Blockyard lacks, and what to do instead.

/// Spellings, and a sentence.
pub(super) const ANSWERS: &[(&[&str], &str)] = &[
    (
        &["-y", "--verify-passphrase"],
        "a passphrase is asked for twice where it is new, by `format`, `key add` and `key change`",
    ),
    (
        &["-v", "--verbose", "--debug", "--debug-json"],
        "errors are complete by default; `blockyard doctor VOLUME` finds problems, and docs/log.md \
         explains the log of a server",
    ),
    (&["-T", "--tries"], "at a terminal a passphrase has three tries, as in cryptsetup"),
    (
        &["-t", "--timeout"],
        "a question waits for its answer; `--key-command COMMAND` has a limit of 120 seconds",
    ),
    (
        &["--test-passphrase"],
        "`blockyard table VOLUME` opens a volume and serves nothing; a wrong passphrase is exit \
         code 2",
    ),
    (
        &["-r", "--readonly"],
        "`serve` and `mount` have --read-only; `dump`, `ls`, `cp` and `info` never write to a \
         volume",
    ),
    (
        &["--dump-volume-key", "--dump-volume-key-file", "--dump-master-key"],
        "`blockyard table VOLUME --show-keys` prints the volume key",
    ),
    (&["--dump-json-metadata"], "`blockyard info VOLUME --json` prints the header as JSON"),
    (
        &["--volume-key-file", "--master-key-file"],
        "`key add` takes a volume key, and a table with the key opens a volume: --table FILE",
    ),
    (&["--use-random", "--use-urandom"], "keys come from getrandom(2)"),
    (
        &["--persistent"],
        "`blockyard header flags VOLUME FLAG` stores flags, which cryptsetup and the kernel obey",
    ),
    (&["--allow-discards"], "TRIM is for `serve --allow-discards`"),
    (&["--align-payload"], "--offset SECTORS places the data"),
    (&["--force-password"], "passphrases are not judged"),
    (&["-u", "--uuid"], "`format` and `header uuid` have --uuid"),
    (
        &[
            "--perf-same_cpu_crypt",
            "--perf-submit_from_crypt_cpus",
            "--perf-no_read_workqueue",
            "--perf-no_write_workqueue",
            "--perf-high_priority",
        ],
        "--pipeline NAME places the threads that encrypt: docs/pipelines.md",
    ),
    (
        &[
            "-I",
            "--integrity",
            "--integrity-legacy-padding",
            "--integrity-no-journal",
            "--integrity-no-wipe",
        ],
        "authenticated encryption is not supported",
    ),
    (
        &[
            "-B",
            "--block-size",
            "-N",
            "--new",
            "--encrypt",
            "--decrypt",
            "--init-only",
            "--resume-only",
            "--keep-key",
            "--reduce-device-size",
            "--hotzone-size",
            "--resilience",
            "--resilience-hash",
            "--force-offline-reencrypt",
            "--write-log",
            "--use-fsync",
        ],
        "the volume key of a volume is not changed in place; `cryptsetup reencrypt` does it",
    ),
    (&["--use-directio"], "--direct bypasses the page cache"),
    (&["--refresh"], "a server keeps the options of its start"),
    (&["--serialize-memory-hard-pbkdf"], "--max-kdf-memory SIZE limits the memory"),
    (&["--key-description"], "a token names a key of the kernel's keyring: docs/cli/token.md"),
    (&["--new-token-id"], "`token import --token-id N` gives a token its number"),
    (&["--usage"], "-? prints the usual options, and --help all of them"),
    (&["--hw-opal", "--hw-opal-only", "--hw-opal-factory-reset"], "OPAL is not supported"),
    (&["--disable-keyring"], "no key is stored in the kernel's keyring"),
    (&["--disable-locks"], "the locks of headers cannot be switched off"),
    (&["--disable-blkid"], "other formats are always recognised before data is overwritten"),
    (
        &["--disable-external-tokens", "--external-tokens-path"],
        "there are no plugins; --no-token tries no token",
    ),
    (
        &["--veracrypt", "--disable-veracrypt"],
        "--type tcrypt tries VeraCrypt's key derivations and TrueCrypt's",
    ),
    (&["--veracrypt-query-pim"], "--veracrypt-pim N gives the PIM"),
    (
        &["--active-name", "--deferred", "--cancel-deferred"],
        "there are no names in /dev/mapper; a server completes the requests of its clients and \
         ends",
    ),
    (&["--progress-frequency", "--progress-json"], "progress is shown at a terminal only"),
];

/// Options of cryptsetup without a value. All others have one.
const SWITCHES: &str = "-v --verbose --debug --debug-json -y --verify-passphrase -q --batch-mode \
    -r --readonly --allow-discards --persistent --test-passphrase --use-random --use-urandom \
    --shared --serialize-memory-hard-pbkdf --force-password --dump-volume-key --dump-master-key \
    --dump-json-metadata --tcrypt-hidden --tcrypt-system --tcrypt-backup --veracrypt \
    --disable-veracrypt --veracrypt-query-pim --token-only --token-replace --unbound \
    --iv-large-sectors --disable-keyring --disable-locks --disable-blkid \
    --disable-external-tokens --deferred --cancel-deferred --refresh --perf-same_cpu_crypt \
    --perf-submit_from_crypt_cpus --perf-no_read_workqueue --perf-no_write_workqueue \
    --perf-high_priority --integrity-no-journal --integrity-no-wipe --progress-json --hw-opal \
    --hw-opal-only --hw-opal-factory-reset";

/// The sentence for an option.
pub(super) fn answer(option: &str) -> Option<&'static str> {
    ANSWERS.iter().find(|(names, _)| names.contains(&option)).map(|(_, answer)| *answer)
}

/// The sentence for a value of `format --type`.
pub(super) fn answer_to_type(value: &str) -> Option<&'static str> {
    match value {
        "luks1" => Some(
            "--type luks1: `format` makes LUKS2; `format --pbkdf pbkdf2 --sector-size 512` makes \
             one that `blockyard header convert VOLUME --type luks1` then converts",
        ),
        "plain" => Some(
            "--type plain: such a volume has no header, so there is nothing to make; `load`, \
             `serve` and all others take --type plain",
        ),
        "tcrypt" | "bitlk" | "loopaes" | "fvault2" => {
            Some("--type: `format` makes LUKS2 volumes only")
        }
        _ => None,
    }
}

/// Whether the option is the type of TrueCrypt and VeraCrypt.
pub(super) fn is_tcrypt(option: &[&str]) -> bool {
    matches!(option, ["-M" | "--type", "tcrypt"] | ["--type=tcrypt" | "-Mtcrypt"])
}

/// Gives the keyfile its name here: cryptsetup asks for the passphrase, and `--key-file` is a
/// keyfile beside it.
pub(super) fn name_keyfile(option: &mut Vec<&str>) {
    const OURS: &str = "--tcrypt-keyfile";
    match option[..] {
        ["-d" | "--key-file", file] => *option = vec![OURS, file],
        [word] => {
            let file = word.strip_prefix("--key-file=").or_else(|| word.strip_prefix("-d"));
            if let Some(file) = file.filter(|file| !file.is_empty()) {
                *option = vec![OURS, file];
            }
        }
        _ => {}
    }
}

/// The option without its value.
pub(super) fn spelling(option: &str) -> &str {
    option.split([' ', '=']).next().unwrap_or(option)
}

/// The words as positional arguments, and options each with its value.
pub(super) fn separated(words: &[String]) -> (Vec<&str>, Vec<Vec<&str>>) {
    let mut positionals = Vec::new();
    let mut options: Vec<Vec<&str>> = Vec::new();
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let is_long = word.starts_with("--");
        if !word.starts_with('-') || word == "-" {
            positionals.push(word);
            continue;
        }
        let holds_value = if is_long { word.contains('=') } else { word.len() > 2 };
        let is_switch = SWITCHES.split_whitespace().any(|switch| switch == word);
        let mut option = vec![word];
        if !holds_value && !is_switch {
            option.extend(words.next());
        }
        options.push(option);
    }
    (positionals, options)
}
