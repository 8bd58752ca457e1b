//! The volumes in `testdata/volumes`: written by Linux, cryptsetup and qemu, opened here.

mod corpus_support;

use corpus_support::Corpus;

#[test]
fn volumes_written_by_others_open_with_their_checksum() {
    let corpus = Corpus::in_repository();
    let entries = corpus.entries();
    assert_eq!(entries.len(), 7);
    for entry in entries {
        let sha256 = corpus.plaintext_sha256(&entry);
        assert_eq!(sha256.as_deref(), Ok(entry.plaintext_sha256.as_str()), "{}", entry.name);
    }
}
