//! The error of the control path: the problem, its place, and its remedy.
//!
//! No error reveals a secret: a wrong passphrase gives one and the same error for every keyslot and
//! every step.

use std::fmt;

use crate::signature::Signature;
use crate::source::SourceError;

/// The reason why a volume could not be read, opened, formatted or repaired.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither a LUKS1 nor a LUKS2 header.
    #[error(
        "no LUKS header found, neither at the start nor where LUKS2 keeps its second copy; if the \
         header lies in a file of its own, name that in `header`; a TrueCrypt or VeraCrypt volume \
         looks like random data, and is opened with `tcrypt`; a plain dm-crypt volume has no \
         header, and is opened with `plain`"
    )]
    NotLuks,
    /// Not LUKS, but another known format.
    #[error("no LUKS header found: the device or file holds {0}")]
    OtherFormat(Signature),
    /// Not LUKS, but partitions of the disk hold LUKS or BitLocker volumes.
    #[error(
        "no LUKS or BitLocker volume at the start of the disk, but {} {} one: `partition` {}",
        named(.partitions),
        if .partitions.len() == 1 { "holds" } else { "each hold" },
        .partitions.first().copied().unwrap_or_default()
    )]
    InPartition {
        /// Their numbers, at least one.
        partitions: Vec<u32>,
    },
    /// Only the secondary header of a LUKS2 volume is left, and another format stands at the start.
    #[error(
        "the device or file holds {0}, and of an older LUKS2 volume only the secondary header is \
         left; to open that volume would destroy what is there now. To look at the old volume, set \
         `header_copy` to the secondary one, and read only. To have it back, if nothing else uses \
         the device, erase the signature with wipefs, then run blockyard repair"
    )]
    Reused(Signature),
    /// The header cannot be read.
    #[error("cannot read {what}: {error}")]
    Read {
        /// The part that was read.
        what: String,
        /// The cause.
        #[source]
        error: SourceError,
    },
    /// The header cannot be written.
    #[error("cannot write {what}: {error}")]
    Write {
        /// The part that was written.
        what: String,
        /// The cause.
        #[source]
        error: SourceError,
    },
    /// A header that violates its format: damage or malice.
    #[error("{place}: {problem}")]
    Header {
        /// The header copy, and the place in it.
        place: String,
        /// The problem.
        problem: String,
    },
    /// Both copies of a LUKS2 header are damaged.
    #[error(
        "both copies of the LUKS2 header are damaged ({}); restore a header backup with \
         blockyard header restore",
        both_problems(.primary, .secondary)
    )]
    BothCopiesDamaged {
        /// The problem of the primary copy.
        primary: String,
        /// The problem of the secondary copy.
        secondary: String,
    },
    /// The volume uses an unsupported feature.
    #[error("{place}: {what}")]
    Unsupported {
        /// The place of the demand.
        place: String,
        /// The feature's name, and its remedy.
        what: String,
    },
    /// The header has an unmet mandatory requirement.
    #[error("LUKS2 header, config.requirements.mandatory: {0}")]
    Requirement(Requirement),
    /// No tried keyslot opens with this passphrase.
    #[error("no keyslot opens with this passphrase{}", Untried(.untried))]
    WrongPassphrase {
        /// Skipped keyslots, each with its reason.
        untried: Vec<KeyslotProblem>,
    },
    /// No header of TrueCrypt or VeraCrypt opens with this passphrase.
    #[error(
        "nothing of TrueCrypt or VeraCrypt opens with this passphrase, PIM and keyfiles{}; CBC \
         volumes of TrueCrypt before 4.1, Kuznyechik and Streebog are not supported",
        not_tried(.untried)
    )]
    NoTcrypt {
        /// Skipped key derivations, each with its reason.
        untried: Vec<String>,
    },
    /// No header of a hidden volume opens, so its place is unknown.
    #[error(
        "no hidden volume opens with its passphrase, PIM and keyfiles{}, so it cannot be protected",
        not_tried(.untried)
    )]
    NoHidden {
        /// Skipped key derivations, each with its reason.
        untried: Vec<String>,
    },
    /// No header of a BitLocker volume.
    #[error("no BitLocker volume found{}", held(.0))]
    NotBitlk(Option<Signature>),
    /// No protector of a BitLocker volume opens.
    #[error(
        "no protector of the BitLocker volume opens with this passphrase, recovery key or startup \
         key file{}",
        not_tried(.untried)
    )]
    NoBitlk {
        /// Skipped protectors, each with its reason.
        untried: Vec<String>,
    },
    /// No keyslot could be tried.
    #[error("the header has no keyslot that can be used for its data{}", Untried(.untried))]
    NoUsableKeyslot {
        /// All keyslots, each with its reason.
        untried: Vec<KeyslotProblem>,
    },
    /// The keyslot named by the caller cannot be used.
    #[error("{0}")]
    Keyslot(KeyslotProblem),
    /// The keyslot is the last one that opens the volume.
    #[error(
        "keyslot {0} is the last one that opens the volume: without it the data is lost, unless \
         there is a backup of the header or of the volume key; `force` removes it"
    )]
    LastKeyslot(u32),
    /// All keyslots, or the whole space for them, are in use.
    #[error("{0}")]
    Full(String),
    /// The header was changed after it was read.
    #[error("the header was changed by another program meanwhile ({0}); try again")]
    Changed(String),
    /// A volume key is not the key of this volume.
    #[error("the volume key does not belong to this volume")]
    WrongVolumeKey,
    /// The data device does not fit the header.
    #[error("data device: {0}")]
    DataDevice(String),
    /// A field of the options of a new or a plain volume is wrong.
    #[error("`{field}`: {problem}")]
    Field {
        /// Its name.
        field: &'static str,
        /// The problem, and the valid values.
        problem: String,
    },
    /// The key derivation of a new keyslot failed.
    #[error("cannot derive the new keyslot's key: {0}")]
    Kdf(#[from] crate::kdf::KdfError),
    /// The system has no random numbers.
    #[error("the system's random number generator failed: {0}")]
    Random(#[from] getrandom::Error),
}

impl Error {
    pub(crate) fn header(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Header { place: place.into(), problem: problem.into() }
    }

    pub(crate) fn unsupported(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Unsupported { place: place.into(), what: what.into() }
    }

    pub(crate) fn field(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Field { field, problem: problem.into() }
    }
}

/// A mandatory requirement that this program does not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// A reencryption is in progress.
    Reencryption(String),
    /// An unknown requirement of another program or a newer version.
    Unknown(String),
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reencryption(name) => write!(
                f,
                "\"{name}\": a reencryption of this volume is in progress; finish it with \
                 cryptsetup reencrypt --resume-only, then open the volume again"
            ),
            Self::Unknown(name) => write!(
                f,
                "\"{name}\" is not supported; opening the volume without it could destroy data, so \
                 use the program that made it"
            ),
        }
    }
}

/// A keyslot that could not be tried, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyslotProblem {
    /// Its number.
    pub keyslot: u32,
    /// The reason.
    pub problem: String,
    /// Whether memory was short for the key derivation.
    pub out_of_memory: bool,
}

impl fmt::Display for KeyslotProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "keyslot {}: {}", self.keyslot, self.problem)
    }
}

/// `partition 3`, or `partitions 1, 2 and 5`.
pub(crate) fn named(numbers: &[u32]) -> String {
    match numbers {
        [] => "no partition".into(),
        [one] => format!("partition {one}"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(u32::to_string).collect();
            format!("partitions {} and {last}", first.join(", "))
        }
    }
}

/// The problems of the two copies, as one text if they are equal.
fn both_problems(primary: &str, secondary: &str) -> String {
    if primary == secondary {
        primary.to_owned()
    } else {
        format!("primary: {primary}; secondary: {secondary}")
    }
}

/// The untried keyslots as the end of a sentence.
struct Untried<'a>(&'a [KeyslotProblem]);

impl fmt::Display for Untried<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { " (not tried: " } else { "; " })?;
            write!(f, "{problem}")?;
        }
        f.write_str(if self.0.is_empty() { "" } else { ")" })
    }
}

fn held(signature: &Option<Signature>) -> String {
    signature.map_or_else(String::new, |held| format!(": the device or file holds {held}"))
}

fn not_tried(derivations: &[String]) -> String {
    if derivations.is_empty() {
        String::new()
    } else {
        format!(" (not tried: {})", derivations.join("; "))
    }
}
