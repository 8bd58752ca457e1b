//! Tests of the table.

use super::actions::{ACTIONS, filled};
use super::*;

fn told(line: &str) -> String {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let all = std::iter::once("blockyard").chain(words.iter().map(String::as_str));
    let error = definition().try_get_matches_from(all).expect_err(line);
    explained(&error, &words).unwrap_or_else(|| panic!("{line}: {error}"))
}

/// The told command line, between the first backquotes.
fn line(said: &str) -> &str {
    said.split('`').nth(1).unwrap()
}

/// `cryptsetup --help` of 2.6 and 2.7.
const NAMES: &str = "open close resize status benchmark repair reencrypt erase convert config \
    luksFormat luksAddKey luksRemoveKey luksChangeKey luksConvertKey luksKillSlot luksUUID isLuks \
    luksDump tcryptDump bitlkDump fvault2Dump luksSuspend luksResume luksHeaderBackup \
    luksHeaderRestore token refresh create plainOpen luksOpen loopaesOpen tcryptOpen bitlkOpen \
    fvault2Open remove plainClose luksClose loopaesClose tcryptClose bitlkClose luksErase";

/// `cryptsetup --help` of 2.6 and 2.7, without `--help` and `--version`.
const OPTIONS: &str = "--active-name --align-payload --allow-discards --batch-mode --block-size \
    --cancel-deferred --cipher --debug --debug-json --decrypt --deferred --device-size \
    --disable-blkid --disable-external-tokens --disable-keyring --disable-locks \
    --disable-veracrypt --dump-json-metadata --dump-master-key --dump-volume-key --encrypt \
    --external-tokens-path --force-offline-reencrypt --force-password --hash --header \
    --header-backup-file --hotzone-size --hw-opal --hw-opal-factory-reset --hw-opal-only \
    --init-only --integrity --integrity-legacy-padding --integrity-no-journal \
    --integrity-no-wipe --iter-time --iv-large-sectors --json-file --keep-key --key-description \
    --key-file --keyfile-offset --keyfile-size --key-size --key-slot --keyslot-cipher \
    --keyslot-key-size --label --luks2-keyslots-size --luks2-metadata-size --master-key-file \
    --new --new-keyfile --new-keyfile-offset --new-keyfile-size --new-key-slot --new-token-id \
    --offset --pbkdf --pbkdf-force-iterations --pbkdf-memory --pbkdf-parallel \
    --perf-high_priority --perf-no_read_workqueue --perf-no_write_workqueue \
    --perf-same_cpu_crypt --perf-submit_from_crypt_cpus --persistent --priority \
    --progress-frequency --progress-json --readonly --reduce-device-size --refresh --resilience \
    --resilience-hash --resume-only --sector-size --serialize-memory-hard-pbkdf --shared --size \
    --skip --subsystem --tcrypt-backup --tcrypt-hidden --tcrypt-system --test-passphrase \
    --timeout --token-id --token-only --token-replace --token-type --tries --type --unbound \
    --usage --use-directio --use-fsync --use-random --use-urandom --uuid --veracrypt \
    --veracrypt-pim --veracrypt-query-pim --verbose --verify-passphrase --volume-key-file \
    --write-log -B -I -M -N -S -T -b -c -d -h -i -l -o -p -q -r -s -t -u -v -y";

/// All spellings of the options of a command and of those below.
fn spellings(command: &Command, found: &mut Vec<String>) {
    for option in command.get_arguments() {
        found.extend(option.get_short().map(|letter| format!("-{letter}")));
        let aliases = option.get_all_aliases().into_iter().flatten();
        found.extend(option.get_long().into_iter().chain(aliases).map(|name| format!("--{name}")));
    }
    command.get_subcommands().for_each(|below| spellings(below, found));
}

#[test]
fn every_option_of_cryptsetup_is_ours_or_is_answered() {
    let mut ours = Vec::new();
    spellings(&definition(), &mut ours);
    for option in OPTIONS.split_whitespace() {
        let is_ours = ours.iter().any(|name| name == option);
        assert!(is_ours || options::answer(option).is_some(), "{option}");
    }
}

#[test]
fn every_action_of_cryptsetup_is_ours_or_is_answered() {
    let definition = definition();
    for name in NAMES.split_whitespace() {
        let is_ours = definition.find_subcommand(name).is_some();
        let is_answered = ACTIONS.iter().any(|action| action.names.contains(&name));
        assert!(is_ours != is_answered, "{name}");
    }
}

#[test]
fn command_lines_of_the_table_are_commands_of_ours() {
    for action in ACTIONS {
        for line in action.lines {
            let arguments = ["device", "name"];
            let words = (1..=2).find_map(|count| filled(line, &arguments[..count])).expect(line);
            let mut at = &definition();
            let mut depth = 0;
            while let Some(below) = words.get(depth).and_then(|word| at.find_subcommand(word)) {
                at = below;
                depth += 1;
            }
            assert!(depth > 0 && !at.has_subcommands(), "{line}");
        }
    }
}

#[test]
fn arguments_and_options_are_those_of_the_user() {
    for (typed, wanted) in [
        ("luksOpen /dev/sdb home -d k", "blockyard serve /dev/sdb --socket home.sock -d k"),
        (
            "open --type plain -c aes-cbc-plain64 -s 256 -h sha256 disk d",
            "blockyard serve disk --socket d.sock --type plain -c aes-cbc-plain64 -s 256 -h sha256",
        ),
        (
            "create d disk -c aes-xts-plain64 -s 512",
            "blockyard serve disk --type plain --socket \
          d.sock -c aes-xts-plain64 -s 512",
        ),
        ("-q luksFormat disk key", "blockyard format disk --key-file key -q"),
        ("luksFormat disk --label home -y", "blockyard format disk --label home -y"),
        ("luksAddKey disk new -S 3", "blockyard key add disk --new-keyfile new -S 3"),
        ("luksKillSlot disk 2", "blockyard key kill disk 2"),
        ("luksDump disk", "blockyard info disk"),
        ("luksUUID disk", "blockyard info disk"),
        ("luksUUID disk --uuid u", "blockyard header uuid disk --uuid u"),
        ("config disk --label l", "blockyard header label disk --label l"),
        (
            "config disk --priority ignore -S 1",
            "blockyard key priority disk --priority ignore -S 1",
        ),
        (
            "luksHeaderBackup disk --header-backup-file f",
            "blockyard header backup disk --header-backup-file f",
        ),
        ("luksErase disk -q", "blockyard erase disk -q"),
        (
            "tcryptOpen disk d -d k",
            "blockyard serve disk --type tcrypt --socket d.sock --tcrypt-keyfile k",
        ),
        (
            "open --type=tcrypt disk d --key-file=k",
            "blockyard serve disk --socket d.sock --type=tcrypt --tcrypt-keyfile k",
        ),
    ] {
        let said = told(typed);
        assert_eq!(line(&said), wanted, "{typed}: {said}");
        assert!(said.contains("is a command of cryptsetup"), "{said}");
    }
    let bell = ["luksDump", "a\x07"].map(str::to_owned);
    assert!(!asked_action(&bell).unwrap().contains("a\x07"), "a control character is shown");
    assert_eq!(line(&asked_action(&bell).unwrap()), "blockyard info", "that is another file");
    let words = ["a b".to_owned(), "c'd".to_owned(), String::new()];
    assert_eq!(shown(&words), r"blockyard 'a b' 'c'\''d' ''");
}

#[test]
fn harmless_option_without_a_counterpart_is_left_out_and_named() {
    let said = told("luksOpen disk d -T 1 --key-file k --use-random");
    assert_eq!(line(&said), "blockyard serve disk --socket d.sock --key-file k");
    assert!(said.contains("without -T 1 (at a terminal"), "{said}");
    assert!(said.contains("without --use-random (keys come"), "{said}");
}

#[test]
fn every_option_of_cryptsetup_has_a_value_or_none() {
    for option in OPTIONS.split_whitespace() {
        let lists = [options::SWITCHES, options::VALUED];
        let lists = lists.map(|list| list.split_whitespace().any(|one| one == option));
        assert_eq!(lists.iter().filter(|has| **has).count(), 1, "{option}");
    }
}

const OTHERS: &str = "with other arguments";

/// A pasted line would make other keys, write to a read-only volume, or destroy another header.
#[test]
fn line_that_would_do_something_else_is_not_told() {
    for (typed, command, lost) in [
        ("luksFormat --use-random --volume-key-file vk -q disk", "format", "--volume-key-file vk"),
        ("luksFormat --integrity-legacy-padding disk key", "format", "--integrity-legacy-padding"),
        ("luksFormat -v --type luks1 disk key", "format", "--type luks1"),
        ("luksFormat disk key -d other", "format", "-d other"),
        ("luksRemoveKey disk key -d other", "key remove", "-d other"),
        ("luksOpen disk d --test-passphrase", "serve", "--test-passphrase"),
        ("luksDump disk --dump-volume-key", "info", "--show-keys"),
        ("create --type luks d disk", "serve", "--type luks"),
        // They do not fit together.
        ("plainOpen -r --shared -c serpent-xts-plain64 disk d", "serve", OTHERS),
        ("luksErase disk --header h -q --batch-mode", "erase", OTHERS),
        ("luksAddKey -S 0 disk key --key-slot=3", "key add", OTHERS),
        // The device is not certain: several letters behind a dash, unknown words.
        ("luksFormat -q -vd key disk", "format", OTHERS),
        ("luksOpen -vr disk d -d key", "serve", OTHERS),
        ("luksErase -- disk", "erase", OTHERS),
        ("luksFormat --no-such disk key", "format", OTHERS),
        ("luksFormat --header", "format", OTHERS),
        // Too few arguments, and too many.
        ("luksKillSlot disk", "key kill", OTHERS),
        ("luksOpen", "serve", OTHERS),
        ("luksErase disk other", "erase", OTHERS),
    ] {
        let said = told(typed);
        assert_eq!(line(&said), format!("blockyard {command}"), "{typed}: {said}");
        assert!(said.contains(lost), "{typed}: {said}");
    }
}

#[test]
fn options_of_cryptsetup_are_answered_by_all_commands() {
    for typed in [
        "table disk --test-passphrase",
        "dump disk -T 2",
        "dump disk -y",
        "format disk --debug",
        "info disk -v",
        "key add disk --use-urandom",
        "mount disk target --timeout 4",
        "load disk --integrity hmac-sha256",
    ] {
        assert!(told(typed).contains("is no option here: "), "{typed}");
    }
    assert!(told("format disk --type luks1").contains("header convert"));
    assert!(told("format disk --type=plain").contains("no header"));
    for typed in ["format disk -y", "key add disk -y", "key change disk --verify-passphrase"] {
        let words = std::iter::once("blockyard").chain(typed.split_whitespace());
        assert!(definition().try_get_matches_from(words).is_ok(), "{typed}");
    }
}

#[test]
fn page_has_every_action_and_option() {
    let page = include_str!("../../../../docs/cli/habits.md");
    let has = |word: &str| page.contains(&format!("`{word}`"));
    let actions = ACTIONS.iter().flat_map(|action| action.names);
    let options = options::ANSWERS.iter().flat_map(|(names, _)| *names);
    let missing: Vec<_> = actions.chain(options).filter(|word| !has(word)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
