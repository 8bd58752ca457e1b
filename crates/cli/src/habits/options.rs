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

/// Options of cryptsetup without a value.
pub(super) const SWITCHES: &str = "-v --verbose --debug --debug-json -y --verify-passphrase \
    -q --batch-mode -r --readonly --allow-discards --persistent --test-passphrase \
    --use-random --use-urandom --shared --serialize-memory-hard-pbkdf --force-password \
    --dump-volume-key --dump-master-key --dump-json-metadata --tcrypt-hidden --tcrypt-system \
    --tcrypt-backup --veracrypt --disable-veracrypt --veracrypt-query-pim --token-only \
    --token-replace --unbound --iv-large-sectors --disable-keyring --disable-locks \
    --disable-blkid --disable-external-tokens --deferred --cancel-deferred --refresh \
    --perf-same_cpu_crypt --perf-submit_from_crypt_cpus --perf-no_read_workqueue \
    --perf-no_write_workqueue --perf-high_priority --integrity-no-journal --integrity-no-wipe \
    --integrity-legacy-padding --progress-json --hw-opal --hw-opal-only \
    --hw-opal-factory-reset -N --new --encrypt --decrypt --init-only --resume-only --keep-key \
    --force-offline-reencrypt --write-log --use-fsync --use-directio --usage";

/// Options of cryptsetup with a value.
pub(super) const VALUED: &str = "--active-name --align-payload --block-size --cipher \
    --device-size --external-tokens-path --hash --header --header-backup-file --hotzone-size \
    --integrity --iter-time --json-file --key-description --key-file --key-size --key-slot \
    --keyfile-offset --keyfile-size --keyslot-cipher --keyslot-key-size --label \
    --luks2-keyslots-size --luks2-metadata-size --master-key-file --new-key-slot \
    --new-keyfile --new-keyfile-offset --new-keyfile-size --new-token-id --offset --pbkdf \
    --pbkdf-force-iterations --pbkdf-memory --pbkdf-parallel --priority --progress-frequency \
    --reduce-device-size --resilience --resilience-hash --sector-size --size --skip \
    --subsystem --timeout --token-id --token-type --tries --type --uuid --veracrypt-pim \
    --volume-key-file -B -I -M -S -T -b -c -d -h -i -l -o -p -s -t -u";

/// Options of cryptsetup that change neither keys nor data nor who may write: a line without them
/// does what was asked for.
const HARMLESS: &str = "-v --verbose --debug --debug-json -T --tries -t --timeout \
    --use-random --use-urandom --force-password --serialize-memory-hard-pbkdf \
    --disable-keyring --disable-locks --disable-external-tokens --perf-same_cpu_crypt \
    --perf-submit_from_crypt_cpus --perf-no_read_workqueue --perf-no_write_workqueue \
    --perf-high_priority --progress-frequency --progress-json -y --verify-passphrase";

pub(super) fn is_harmless(option: &str) -> bool {
    HARMLESS.split_whitespace().any(|harmless| harmless == option)
}

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

/// Words of the user: positional arguments, and options each with its value.
pub(super) type Words<'a> = (Vec<&'a str>, Vec<Vec<&'a str>>);

/// Parts the words as cryptsetup does. `None` if a word is unknown or several letters stand behind
/// one dash: then it is not certain which word is the device.
pub(super) fn separated(words: &[String]) -> Option<Words<'_>> {
    let is_in = |list: &str, word: &str| list.split_whitespace().any(|one| one == word);
    let mut positionals = Vec::new();
    let mut options: Vec<Vec<&str>> = Vec::new();
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        if word.chars().any(char::is_control) {
            return None;
        }
        let name = spelling(word);
        let is_attached =
            !word.starts_with("--") && word.get(..2).is_some_and(|letter| is_in(VALUED, letter));
        if !word.starts_with('-') || word == "-" {
            positionals.push(word);
        } else if is_in(SWITCHES, word) || (is_in(VALUED, name) && word.contains('=')) {
            options.push(vec![word]);
        } else if is_in(VALUED, word) {
            options.push(vec![word, words.next()?]);
        } else if is_attached {
            options.push(vec![word]);
        } else {
            return None;
        }
    }
    Some((positionals, options))
}
