//! The steps of a key's life, in the words of both programs.

/// Options of a new keyslot, for both programs.
pub(super) const CHEAP: &str = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000";

/// One command.
pub(super) struct Step {
    /// The version of LUKS that has it; `None`: both.
    pub(super) version: Option<u16>,
    /// Words of `blockyard`. VOLUME is the file with the header, PLACE names a detached header's
    /// data too, and CHEAP is [`CHEAP`].
    pub(super) ours: &'static str,
    /// Words of `cryptsetup`; empty if the command changes nothing.
    pub(super) theirs: &'static str,
    /// Key files that open the volume afterwards.
    pub(super) opens: &'static [&'static str],
    /// Key files that do not.
    pub(super) closed: &'static [&'static str],
    /// Beginnings of lines of `luksDump` that differ, as `docs/cli/key.md` says.
    pub(super) differs: &'static [&'static str],
}

const NOTHING: Step =
    Step { version: None, ours: "", theirs: "", opens: &[], closed: &[], differs: &[] };

/// The commands that change a header, so that each can run after the others.
pub(super) const STEPS: &[Step] = &[
    Step {
        ours: "key add VOLUME -d old --new-keyfile second CHEAP",
        theirs: "luksAddKey VOLUME -d old second CHEAP",
        opens: &["old", "second"],
        ..NOTHING
    },
    Step {
        // In place where the volume has no room for another keyslot, as cryptsetup.
        ours: "key change VOLUME -d second --new-keyfile third --force CHEAP",
        theirs: "luksChangeKey VOLUME -d second third CHEAP",
        opens: &["third"],
        closed: &["second"],
        ..NOTHING
    },
    Step {
        version: Some(2),
        ours: "key convert VOLUME -d third --force --pbkdf pbkdf2 --pbkdf-force-iterations 2000",
        theirs: "luksConvertKey VOLUME -d third --pbkdf pbkdf2 --pbkdf-force-iterations 2000",
        opens: &["third"],
        ..NOTHING
    },
    Step {
        version: Some(2),
        ours: "key priority VOLUME -S 0 --priority prefer",
        theirs: "config VOLUME -S 0 --priority prefer",
        ..NOTHING
    },
    Step {
        version: Some(2),
        ours: "header label VOLUME --label new --subsystem life",
        theirs: "config VOLUME --label new --subsystem life",
        ..NOTHING
    },
    Step {
        ours: "header uuid VOLUME --uuid 0f35c1f2-6c2f-4c3b-9d4c-6f6a3f0b9d11",
        theirs: "luksUUID VOLUME --uuid 0f35c1f2-6c2f-4c3b-9d4c-6f6a3f0b9d11",
        ..NOTHING
    },
    Step {
        version: Some(2),
        ours: "token import VOLUME --json-file token.json --token-id 5",
        theirs: "token import VOLUME --json-file token.json --token-id 5",
        opens: &["third"],
        ..NOTHING
    },
    Step {
        version: Some(2),
        ours: "token remove VOLUME --token-id 5",
        theirs: "token remove VOLUME --token-id 5",
        ..NOTHING
    },
    Step {
        ours: "key remove VOLUME -d old",
        theirs: "luksRemoveKey VOLUME -d old",
        opens: &["third"],
        closed: &["old"],
        ..NOTHING
    },
    Step {
        ours: "header backup VOLUME -o backup --force",
        theirs: "luksHeaderBackup VOLUME --header-backup-file their-backup",
        ..NOTHING
    },
    Step {
        ours: "erase VOLUME -q",
        theirs: "erase VOLUME",
        closed: &["third"],
        // cryptsetup writes the header once for each keyslot.
        differs: &["Epoch:"],
        ..NOTHING
    },
    Step {
        ours: "header restore VOLUME -i backup -q",
        theirs: "luksHeaderRestore VOLUME --header-backup-file backup",
        opens: &["third"],
        closed: &["old"],
        ..NOTHING
    },
    // cryptsetup changes these only of an active volume, or not at all.
    Step {
        version: Some(2),
        ours: "header flags VOLUME allow-discards",
        opens: &["third"],
        differs: &["Epoch:", "Flags:"],
        ..NOTHING
    },
    Step {
        version: Some(2),
        ours: "resize PLACE --device-size 64K -q",
        opens: &["third"],
        differs: &["Epoch:", "Flags:", "length:"],
        ..NOTHING
    },
    Step { version: Some(2), ours: "resize PLACE -q", differs: &["Epoch:", "Flags:"], ..NOTHING },
    Step {
        version: Some(2),
        ours: "header flags VOLUME --none",
        opens: &["third"],
        differs: &["Epoch:", "Flags:"],
        ..NOTHING
    },
];
