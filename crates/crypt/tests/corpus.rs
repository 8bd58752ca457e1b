//! The corpus: volumes written by the Linux kernel, cryptsetup and qemu, each with known plaintext.
//!
//! The corpus is not part of the repository. If `BLOCKYARD_CORPUS` or `../shared/corpus` contains
//! it, every volume must open with the listed checksum. `tests/corpus_volumes.rs` does the same
//! with the few volumes of the repository.

mod corpus_support;

use corpus_support::{Corpus, Entry, hex};

#[test]
fn corpus_every_volume_opens_with_its_checksum() {
    let Some(corpus) = Corpus::find() else {
        return;
    };
    let entries = corpus.entries();
    assert!(entries.len() >= 91, "the corpus has {} volumes", entries.len());
    let mut failures = Vec::new();
    for entry in &entries {
        if let Err(problem) = check(&corpus, entry) {
            failures.push(format!("{}: {problem}", entry.name));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn check(corpus: &Corpus, entry: &Entry) -> Result<(), String> {
    match corpus.plaintext_sha256(entry)? {
        sha256 if sha256 == entry.plaintext_sha256 => Ok(()),
        sha256 => Err(format!("the plaintext's checksum is {sha256}")),
    }
}

/// (volume, key file, keyslot it opens)
const KEYSLOTS: [(&str, &str, u32); 17] = [
    ("l1-8slots", "keys/p0", 0),
    ("l1-8slots", "keys/p1", 1),
    ("l1-8slots", "keys/p2", 2),
    ("l1-8slots", "keys/p3", 3),
    ("l1-8slots", "keys/p4", 4),
    ("l1-8slots", "keys/p5", 5),
    ("l1-8slots", "keys/p6", 6),
    ("l1-8slots", "keys/p7", 7),
    ("l1-slot57", "keys/p5", 5),
    ("l1-slot57", "keys/p0", 7),
    // Binary bytes, with a NUL and a newline among them.
    ("l1-binary-pass", "keys/pbin", 1),
    ("l1-binary-pass", "keys/p0", 0),
    ("l2-multislot", "keys/p0", 0),
    ("l2-multislot", "keys/p1", 1),
    ("l2-multislot", "keys/p2", 2),
    ("l2-multislot", "keys/p3", 3),
    ("l2-unbound", "keys/p0", 0),
];

#[test]
fn corpus_every_keyslot_opens_with_its_own_passphrase() {
    let Some(corpus) = Corpus::find() else {
        return;
    };
    for (name, key_file, keyslot) in KEYSLOTS {
        let entry = corpus.entry(name);
        for named in [None, Some(keyslot)] {
            let unlocked = corpus.unlock(&entry, key_file, named).unwrap_or_else(|problem| {
                panic!("{name} with {key_file}: {problem}");
            });
            assert_eq!(unlocked.keyslot, keyslot, "{name}");
            let expected = entry.volume_key_hex.as_deref().unwrap();
            assert_eq!(hex(unlocked.volume_key.as_slice()), expected, "{name}");
        }
    }
}

#[test]
fn corpus_wrong_passphrase_is_the_same_error_for_every_volume() {
    let Some(corpus) = Corpus::find() else {
        return;
    };
    for name in ["l1-8slots", "l1-aes-cbc-essiv", "l2-argon2id", "l2-pbkdf2-sha3"] {
        let wrong = corpus.unlock(&corpus.entry(name), "keys/rawkey32", None).unwrap_err();
        assert_eq!(wrong, "no keyslot opens with this passphrase", "{name}");
    }
}

#[test]
fn corpus_ignored_and_unbound_keyslots_open_nothing_by_themselves() {
    let Some(corpus) = Corpus::find() else {
        return;
    };
    let multislot = corpus.entry("l2-multislot");
    let ignored = corpus.unlock(&multislot, "keys/p4", None).unwrap_err();
    assert!(ignored.starts_with("no keyslot opens with this passphrase"), "{ignored}");
    assert!(ignored.contains("keyslot 9: its priority is \"ignore\""), "{ignored}");
    assert_eq!(corpus.unlock(&multislot, "keys/p4", Some(9)).unwrap().keyslot, 9);

    let unbound = corpus.entry("l2-unbound");
    let named = corpus.unlock(&unbound, "keys/p5", Some(5)).unwrap_err();
    assert!(named.starts_with("keyslot 5: it is unbound"), "{named}");
    let unused = corpus.unlock(&unbound, "keys/p0", Some(4)).unwrap_err();
    assert_eq!(unused, "keyslot 4: it is not in use");
}
