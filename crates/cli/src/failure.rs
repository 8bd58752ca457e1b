//! Failures of commands: one sentence on standard error, and an exit code for scripts.
//!
//! The codes are cryptsetup's (`cryptsetup(8)`, "RETURN CODES"), so that scripts which distinguish
//! a wrong passphrase from a missing file keep working. A message names the problem, its place and
//! a remedy; it never contains a passphrase or a key.

use std::fmt;
use std::process::ExitCode;

use blockyard::ControlError;
use blockyard::format::FormatError;
use blockyard::keys::KeyError;
use blockyard::output::OutputError;
use blockyard::tune::TuneError;
use blockyard_crypt::Error as CryptError;
use blockyard_crypt::kdf::KdfError;
use blockyard_host::Error as HostError;

pub(crate) use blockyard::text::printable;

/// The kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Wrong parameters, or the operation failed.
    Failed = 1,
    /// No permission: no keyslot opens with this passphrase.
    NoPermission = 2,
    /// Out of memory.
    OutOfMemory = 3,
    /// The volume is missing, cannot be opened, or is of another kind.
    WrongDevice = 4,
    /// The volume is in use, or data would be overwritten.
    Busy = 5,
}

/// The exit codes, for `--help` and the man pages.
pub(crate) const EXIT_CODES: &str = "Exit codes: 0 success, 1 wrong parameters or a failed \
operation, 2 no permission (wrong passphrase), 3 out of memory, 4 wrong device (missing, \
unreadable, or not such a volume), 5 the device is busy or would be overwritten.";

/// A failed command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The exit code of the process.
    pub(crate) exit: Exit,
    /// A few sentences at most, without "error:" at the start.
    pub(crate) message: String,
}

impl Failure {
    /// Wrong parameters, or an operation that failed.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, message: message.into() }
    }

    /// The passphrase opens nothing.
    pub(crate) fn no_permission(message: impl Into<String>) -> Self {
        Self { exit: Exit::NoPermission, message: message.into() }
    }

    /// The volume is missing, unreadable or of another kind.
    pub(crate) fn wrong_device(message: impl Into<String>) -> Self {
        Self { exit: Exit::WrongDevice, message: message.into() }
    }

    /// The volume is in use, or has data.
    pub(crate) fn busy(message: impl Into<String>) -> Self {
        Self { exit: Exit::Busy, message: message.into() }
    }

    /// Puts a place before the message: `home: cannot open …`.
    pub(crate) fn at(mut self, place: impl fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// The code for `main` to return.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.exit as u8)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<CryptError> for Failure {
    fn from(error: CryptError) -> Self {
        let exit = match &error {
            CryptError::WrongPassphrase { .. }
            | CryptError::WrongVolumeKey
            | CryptError::NoTcrypt { .. }
            | CryptError::NoHidden { .. }
            | CryptError::NoBitlk { .. } => Exit::NoPermission,
            CryptError::Changed(_) => Exit::Busy,
            CryptError::Kdf(KdfError::OutOfMemory { .. }) => Exit::OutOfMemory,
            CryptError::Keyslot(problem) if problem.out_of_memory => Exit::OutOfMemory,
            CryptError::NoUsableKeyslot { untried } => match untried.as_slice() {
                // The volume was erased: not a fault of the device, as in cryptsetup.
                [] => Exit::Failed,
                _ if untried.iter().any(|problem| problem.out_of_memory) => Exit::OutOfMemory,
                _ => Exit::WrongDevice,
            },
            CryptError::NotLuks
            | CryptError::NotBitlk(_)
            | CryptError::OtherFormat(_)
            | CryptError::InPartition { .. }
            | CryptError::Reused(_)
            | CryptError::Read { .. }
            | CryptError::Header { .. }
            | CryptError::BothCopiesDamaged { .. }
            | CryptError::Unsupported { .. }
            | CryptError::Requirement(_)
            | CryptError::DataDevice(_) => Exit::WrongDevice,
            _ => Exit::Failed,
        };
        // In cryptsetup, --key-file names the keyfile.
        let hint = match &error {
            CryptError::NoTcrypt { .. } => {
                "; --key-file has the passphrase, and a keyfile beside it is --tcrypt-keyfile FILE"
            }
            _ => "",
        };
        Self { exit, message: shown(&error) + hint }
    }
}

impl From<HostError> for Failure {
    fn from(error: HostError) -> Self {
        let exit = match &error {
            error if error.is_busy() => Exit::Busy,
            HostError::Io { action: "open", .. } | HostError::Volume { .. } => Exit::WrongDevice,
            _ => Exit::Failed,
        };
        Self { exit, message: shown(&error) }
    }
}

#[cfg(feature = "lab")]
impl From<blockyard_lab::Error> for Failure {
    fn from(error: blockyard_lab::Error) -> Self {
        match error {
            blockyard_lab::Error::Run { job, source } => Self::from(source).at(job),
            error => Self::failed(error.to_string()),
        }
    }
}

impl From<blockyard::Error> for Failure {
    fn from(error: blockyard::Error) -> Self {
        use blockyard::Error as Library;
        match error {
            Library::Crypt { path, source } => Self::from(source).at(path.display()),
            Library::Table { path, source } => Self::from(source).at(path.display()),
            Library::Host(source) => source.into(),
            Library::WouldOverwrite { path } => Self::busy(format!(
                "{}: has data, and the jobs would overwrite it; say --destroy if nothing of it is \
                 needed any more",
                printable(&path.display().to_string())
            )),
            Library::Key(source) => source.into(),
            Library::Format(source) => source.into(),
            Library::Control(source) => source.into(),
            Library::Tune(source) => source.into(),
            error if error.is_busy() => Self::busy(shown(&error)),
            error @ Library::Place { .. } => Self::wrong_device(shown(&error)),
            Library::Output(error) => error.into(),
            error => Self::failed(shown(&error)),
        }
    }
}

impl From<KeyError> for Failure {
    fn from(error: KeyError) -> Self {
        let text = shown(&error);
        Self::failed(match error {
            KeyError::NotOpen(number) => {
                format!("{text}; in a shell, `--key-fd {number} {number}<FILE` opens it")
            }
            _ => text,
        })
    }
}

impl From<FormatError> for Failure {
    fn from(error: FormatError) -> Self {
        match error {
            FormatError::Open { path, source } => Self::wrong_device(format!(
                "cannot open {}: {source}; --size 10G creates a file of that size",
                path.display()
            )),
            FormatError::Read { .. } => Self::wrong_device(shown(&error)),
            FormatError::WouldDestroy { .. } => Self::busy(shown(&error)),
            error => Self::failed(shown(&error)),
        }
    }
}

impl From<TuneError> for Failure {
    fn from(error: TuneError) -> Self {
        #[cfg(feature = "lab")]
        if let TuneError::NoRequest { slice, settings } = &error {
            return Self::failed(format!(
                "no request ended within {} ms, with {}; give each measurement more time with \
                 --slice",
                slice.as_millis(),
                crate::tune::settings::text(settings)
            ));
        }
        Self::failed(shown(&error))
    }
}

impl From<OutputError> for Failure {
    fn from(error: OutputError) -> Self {
        let exit = if error.is_busy() { Exit::Busy } else { Exit::Failed };
        Self { exit, message: shown(&error) }
    }
}

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        match &error {
            ControlError::Io { socket, .. } => Self::wrong_device(format!(
                "{error}; is a server running with `--control {}`?",
                socket.display()
            )),
            ControlError::NoControlSocket { .. } => {
                Self::wrong_device(format!("{error}; name the path of `serve --control`"))
            }
            ControlError::Refused { name, .. } => {
                let exit = match name.as_str() {
                    "EBUSY" | "EAGAIN" => Exit::Busy,
                    "ENXIO" => Exit::WrongDevice,
                    _ => Exit::Failed,
                };
                Self { exit, message: shown(&error) }
            }
            ControlError::Field { field, problem } => {
                let of = match *field {
                    "export" => "--export",
                    "path" => "--output",
                    "digits" => "the new key",
                    "words" => "MESSAGE",
                    field => field,
                };
                Self::failed(format!("{of}: {problem}"))
            }
            error => Self::failed(error.to_string()),
        }
    }
}

/// The library's field names, and their command-line options.
const OPTIONS: &[(&str, &str)] = &[
    ("`cipher`", "--cipher"),
    ("`Credential`", "--key-credential"),
    ("`data_offset_bytes`", "--offset"),
    ("`Descriptor`", "--key-fd"),
    ("`elevator`", "--elevator"),
    ("`export`", "--export"),
    ("`flags`", "FLAG"),
    ("`force`", "--force"),
    ("`hash`", "--hash"),
    ("`header`", "--header"),
    ("`header_copy`", "--header-copy"),
    ("`iterations`", "--pbkdf-force-iterations"),
    ("`json`", "--json-file"),
    ("`key`", "--key-file"),
    ("`key_size_bits`", "--key-size"),
    ("`KeyCommand`", "--key-command"),
    ("`keyslot`", "--key-slot"),
    ("`keyslot_cipher`", "--keyslot-cipher and --keyslot-key-size"),
    ("`keyslots_len_bytes`", "--luks2-keyslots-size"),
    ("`label`", "--label"),
    ("`len_bytes`", "--keyfile-size"),
    ("`memory_kib_max`", "--max-kdf-memory"),
    ("`metadata_len_bytes`", "--luks2-metadata-size"),
    ("`minimum_block_bytes`", "--minimum-block"),
    ("`device_size`", "--device-size"),
    ("`offset_bytes`", "--keyfile-offset"),
    ("`offset_sectors`", "--offset"),
    ("`partition`", "--partition"),
    ("`pbkdf`", "--pbkdf"),
    ("`pbkdf_iterations`", "--pbkdf-force-iterations"),
    ("`pbkdf_memory_kib`", "--pbkdf-memory"),
    ("`pbkdf_target_ms`", "--iter-time"),
    ("`pbkdf_threads`", "--pbkdf-parallel"),
    ("`pim`", "--veracrypt-pim"),
    ("`pipeline`", "--pipeline"),
    ("is opened with `tcrypt`", "commands that read its data take --type tcrypt"),
    ("`as_file`", "--as-file"),
    ("`recursive`", "--recursive"),
    ("`inner_partition`", "--inner-partition"),
    ("`uid`, `gid` and `umask`", "--uid, --gid and --umask"),
    ("`backup`", "--tcrypt-backup"),
    ("is opened with `plain`", "commands that read its data, such as dump, take --type plain"),
    ("`priority`", "--priority"),
    ("`protect_hidden`", "--protect-hidden"),
    ("`read_only`", "--read-only"),
    ("`replace`", "--force"),
    ("`seconds_max`", "--max-kdf-time"),
    ("`sector_size_bytes`", "--sector-size"),
    ("`size_bytes`", "--size"),
    ("`size_sectors`", "--size"),
    ("`skip_sectors`", "--skip"),
    ("`start_bytes`", "--offset"),
    ("`stop_recording`", "`blockyard trace stop`"),
    ("`subsystem`", "--subsystem"),
    ("`token`", "--token-id"),
    ("`TokenChoice::number`", "--token-id"),
    ("`token_replace`", "--token-replace"),
    ("`unbound`", "--unbound"),
    ("`uuid`", "--uuid"),
    ("`worker_threads`", "--threads"),
];

/// An error of the library, with options in place of fields.
pub(crate) fn shown(error: &impl fmt::Display) -> String {
    with_options(&printable(&error.to_string()))
}

/// A text of the library, with options in place of fields.
pub(crate) fn with_options(text: &str) -> String {
    let mut text = text.to_owned();
    for (field, option) in OPTIONS {
        text = text.replace(field, option);
    }
    text
}

#[cfg(test)]
mod tests {
    use blockyard_crypt::KeyslotProblem;

    use super::*;

    #[test]
    fn exit_codes_of_keyslots_are_those_of_cryptsetup() {
        let problem = |out_of_memory| KeyslotProblem {
            keyslot: 0,
            problem: "it is odd".to_owned(),
            out_of_memory,
        };
        let exit = |error: CryptError| Failure::from(error).exit;
        let unusable = |untried| CryptError::NoUsableKeyslot { untried };
        assert_eq!(exit(unusable(vec![])), Exit::Failed, "an erased volume");
        assert_eq!(exit(unusable(vec![problem(false)])), Exit::WrongDevice);
        assert_eq!(exit(unusable(vec![problem(false), problem(true)])), Exit::OutOfMemory);
        assert_eq!(exit(CryptError::Keyslot(problem(true))), Exit::OutOfMemory);
        assert_eq!(exit(CryptError::Keyslot(problem(false))), Exit::Failed);
    }

    #[test]
    fn fields_of_the_library_are_options_of_the_command_line() {
        let error = CryptError::Field { field: "key_size_bits", problem: "odd".to_owned() };
        assert_eq!(Failure::from(error).message, "--key-size: odd");
        let text = |error: blockyard::Error| Failure::from(error).message;
        let short = KeyError::Short { place: "a".into(), found_bytes: 1, wanted_bytes: 2 };
        assert_eq!(text(short.into()), "a ends after 1 bytes, but --keyfile-size asks for 2");
        let offset = KeyError::Offset { place: "a".into(), offset_bytes: 3 };
        assert_eq!(text(offset.into()), "a has no byte at --keyfile-offset 3");
        let closed = text(KeyError::NotOpen(7).into());
        assert!(closed.starts_with("--key-fd 7: this descriptor is not open; in a shell"));
        let wanted = "--pbkdf-memory and --pbkdf-parallel are for argon2; PBKDF2 has neither";
        assert_eq!(text(FormatError::NotArgon2.into()), wanted);
        let device = FormatError::SizeOfDevice("/dev/sdx".into());
        let wanted =
            "--size creates a file, but /dev/sdx exists and is not a file; leave --size out";
        assert_eq!(text(device.into()), wanted);
        #[cfg(feature = "lab")]
        {
            let slice = std::time::Duration::from_secs(2);
            let error = TuneError::NoRequest { slice, settings: Box::default() };
            let wanted = "no request ended within 2000 ms, with the default; give each measurement \
                          more time with --slice";
            assert_eq!(text(error.into()), wanted);
        }
        let error = blockyard::Error::Recorded;
        assert!(Failure::from(error).message.contains("blockyard trace stop"));
    }

    #[test]
    fn refusal_to_overwrite_names_the_option_that_allows_it() {
        let failure = Failure::from(blockyard::Error::WouldOverwrite { path: "disk".into() });
        assert_eq!(failure.exit, Exit::Busy);
        assert!(failure.message.starts_with("disk: has data"), "{failure}");
        assert!(failure.message.contains("--destroy"), "{failure}");
    }

    #[test]
    fn failure_at_a_place_keeps_its_exit_code() {
        let failure = Failure::no_permission("wrong passphrase").at("home");
        assert_eq!(failure.to_string(), "home: wrong passphrase");
        assert_eq!(failure.exit, Exit::NoPermission);
    }
}
