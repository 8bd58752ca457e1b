//! `blockyard key`: the keyslots of a volume, with the words of cryptsetup.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use blockyard::keys::{Keyslots, Last, NewKeyslot, Opener, Planned, Priority, read_secret};
use blockyard::{KdfLimits, Key, header};
use blockyard_crypt::luks::HeaderInfo;
use blockyard_crypt::luks2;
use blockyard_crypt::secret::SecretBytes;
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use serde::Serialize;

use crate::args::{AskedTokenArgs, CostArgs, HeaderPlaceArgs, HelpArgs, KeyArgs, ShortHelpArgs};
use crate::failure::{Failure, printable};
use crate::json;
use crate::key::{KeyInput, KeySource, StdinUse};
use crate::output::{print, say};
use crate::size::parse_size;
use crate::volume_spec::warn_without_lock;

/// Add, change or remove passphrases of a LUKS volume
///
/// The volume may be in use meanwhile, by Blockyard, cryptsetup or the kernel. An interruption at
/// any moment leaves a volume that opens with the old passphrase or the new one.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct KeyCommand {
    #[command(subcommand)]
    action: Action,

    #[command(flatten)]
    help: ShortHelpArgs,
}

#[derive(Subcommand, Debug)]
#[command(disable_help_flag = true)]
enum Action {
    Add(AddArgs),
    Change(ChangeArgs),
    Remove(RemoveArgs),
    Kill(KillArgs),
    Convert(ConvertArgs),
    Priority(PriorityArgs),
    List(ListArgs),
}

/// Add a passphrase or key file to a free keyslot
///
/// An existing passphrase, or the volume key, opens the volume. Without a terminal the existing
/// passphrase is the first line of standard input, and the new one is the second.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct AddArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    #[command(flatten)]
    key: KeyArgs,

    #[command(flatten)]
    tokens: AskedTokenArgs,

    #[command(flatten)]
    opening: OpeningArgs,

    #[command(flatten)]
    new: NewKeyArgs,

    #[command(flatten)]
    keyslot: KeyslotArgs,

    /// The new keyslot, or with --new-key-slot the keyslot of the existing passphrase
    #[arg(short = 'S', long, value_name = "N", help_heading = "Key options")]
    key_slot: Option<u32>,

    /// The new keyslot; the default is the first free one
    #[arg(long, value_name = "N", help_heading = "Key options")]
    new_key_slot: Option<u32>,

    /// The volume key in a file, instead of an existing passphrase; with --unbound the key to store
    #[arg(long, alias = "master-key-file", value_name = "FILE", value_hint = ValueHint::FilePath,
          help_heading = "Key options")]
    volume_key_file: Option<PathBuf>,

    /// Store a key that opens nothing of this volume; a random one without --volume-key-file
    #[arg(long, help_heading = "Keyslot options")]
    unbound: bool,

    #[command(flatten)]
    help: HelpArgs,
}

/// Replace a passphrase
///
/// LUKS2 keeps the keyslot's number and priority; LUKS1 uses the first free keyslot. The old
/// keyslot is overwritten with random bytes. On flash (SSD, SD card) old bytes may survive in spare
/// blocks.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct ChangeArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    #[command(flatten)]
    key: KeyArgs,

    #[command(flatten)]
    opening: OpeningArgs,

    #[command(flatten)]
    new: NewKeyArgs,

    #[command(flatten)]
    keyslot: KeyslotArgs,

    /// The keyslot of the old passphrase
    #[arg(short = 'S', long, value_name = "N", help_heading = "Key options")]
    key_slot: Option<u32>,

    /// Overwrite the keyslot in place if no other is free: a power cut would then lose it
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    help: HelpArgs,
}

/// Remove the keyslot that a passphrase opens
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct RemoveArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    #[command(flatten)]
    key: KeyArgs,

    #[command(flatten)]
    opening: OpeningArgs,

    /// The keyslot; the default is the one that the passphrase opens
    #[arg(short = 'S', long, value_name = "N", help_heading = "Key options")]
    key_slot: Option<u32>,

    #[command(flatten)]
    last: LastArgs,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Remove a keyslot by its number
///
/// A passphrase of another keyslot is asked for first, so that the volume still opens. For the last
/// keyslot, with --force, its own passphrase is asked for. With --batch-mode no passphrase is
/// needed, unless --key-file or --key-fd names one.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct KillArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    /// The keyslot
    #[arg(value_name = "N")]
    key_slot: u32,

    /// Do not ask for a passphrase
    #[arg(short = 'q', long)]
    batch_mode: bool,

    #[command(flatten)]
    key: KeyArgs,

    #[command(flatten)]
    opening: OpeningArgs,

    #[command(flatten)]
    last: LastArgs,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Give a keyslot another key derivation or cipher, with the passphrase that it has
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct ConvertArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    #[command(flatten)]
    key: KeyArgs,

    #[command(flatten)]
    opening: OpeningArgs,

    #[command(flatten)]
    keyslot: KeyslotArgs,

    /// The keyslot; the default is the one that the passphrase opens
    #[arg(short = 'S', long, value_name = "N", help_heading = "Key options")]
    key_slot: Option<u32>,

    /// Overwrite the keyslot in place if no other is free: a power cut would then lose it
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    help: HelpArgs,
}

/// Set the priority of a keyslot, LUKS2 only
#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    override_usage = "blockyard key priority [OPTIONS] -S <N> --priority <PRIORITY> <VOLUME>"
)]
struct PriorityArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    /// The keyslot
    #[arg(short = 'S', long, value_name = "N")]
    key_slot: u32,

    /// The priority
    #[arg(long, value_enum)]
    priority: PriorityName,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// List the keyslots
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct ListArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

impl Action {
    /// The header that the action changes.
    fn changed(&self) -> Option<&HeaderPlaceArgs> {
        match self {
            Self::Add(args) => Some(&args.place),
            Self::Change(args) => Some(&args.place),
            Self::Remove(args) => Some(&args.place),
            Self::Kill(args) => Some(&args.place),
            Self::Convert(args) => Some(&args.place),
            Self::Priority(args) => Some(&args.place),
            Self::List(_) => None,
        }
    }
}

/// Source of the new passphrase; the default is to ask at the terminal.
#[derive(Args, Debug)]
#[command(next_help_heading = "Key options")]
struct NewKeyArgs {
    /// Read the new key from a file; `-` is standard input
    ///
    /// The file is read byte for byte, and standard input to its end.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    new_keyfile: Option<PathBuf>,

    /// Skip the first bytes of the new key file
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0",
          hide_default_value = true)]
    new_keyfile_offset: u64,

    /// Read only this many bytes of the new key file
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    new_keyfile_size: Option<u64>,
}

/// Limits on the demands of the header.
#[derive(Args, Debug)]
#[command(next_help_heading = "Key options")]
struct OpeningArgs {
    /// Refuse a keyslot whose key derivation needs more memory than this (default 4G)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_kdf_memory: Option<u64>,

    /// Refuse a keyslot whose key derivation would take more seconds than this (default 60)
    #[arg(long, value_name = "SECONDS")]
    max_kdf_time: Option<u64>,
}

/// Parameters of a new keyslot.
#[derive(Args, Debug)]
#[command(next_help_heading = "Keyslot options")]
struct KeyslotArgs {
    /// Cipher of the keyslot, LUKS2 only; the default is that of the data
    #[arg(long, value_name = "CIPHER", requires = "keyslot_key_size")]
    keyslot_cipher: Option<String>,

    /// Key size of that cipher
    #[arg(long, value_name = "BITS", requires = "keyslot_cipher")]
    keyslot_key_size: Option<u32>,

    /// Priority of the keyslot, LUKS2 only
    #[arg(long, value_enum)]
    priority: Option<PriorityName>,

    /// Hash of the anti-forensic split and of PBKDF2
    #[arg(short = 'h', long)]
    hash: Option<String>,

    #[command(flatten)]
    cost: CostArgs,
}

/// The last keyslot.
#[derive(Args, Clone, Copy, Debug)]
struct LastArgs {
    /// Remove even the last keyslot that opens the volume: the data is then lost
    #[arg(long)]
    force: bool,
}

/// Values of `--priority`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PriorityName {
    /// Tried first
    Prefer,
    /// Tried after the preferred ones
    Normal,
    /// Tried only if it is named
    Ignore,
}

impl From<PriorityName> for Priority {
    fn from(name: PriorityName) -> Self {
        match name {
            PriorityName::Prefer => Self::Prefer,
            PriorityName::Normal => Self::Normal,
            PriorityName::Ignore => Self::Ignore,
        }
    }
}

impl NewKeyArgs {
    /// Reads the new passphrase, twice at a terminal.
    fn read(&self, path: &Path) -> Result<Key, Failure> {
        let source = match &self.new_keyfile {
            Some(file) if file.as_os_str() == "-" => KeySource::Stdin,
            Some(file) => KeySource::File(file.clone()),
            None => KeySource::Ask,
        };
        let input = KeyInput {
            source,
            offset_bytes: self.new_keyfile_offset,
            len_bytes: self.new_keyfile_size,
        };
        Ok(Key::Passphrase(input.read_new(&format!("a new keyslot of {}", path.display()))?))
    }
}

impl OpeningArgs {
    fn keyslots(&self, place: &HeaderPlaceArgs) -> Keyslots {
        let mut limits = KdfLimits::default();
        if let Some(len_bytes) = self.max_kdf_memory {
            limits.memory_kib_max = len_bytes / 1024;
        }
        if let Some(seconds) = self.max_kdf_time {
            limits.seconds_max = seconds;
        }
        Keyslots::of(place.path()).place(place.in_disk()).kdf_limits(limits)
    }
}

impl KeyslotArgs {
    fn options(&self, keyslot: Option<u32>) -> NewKeyslot {
        NewKeyslot {
            keyslot,
            pbkdf: self.cost.pbkdf.map(Into::into),
            pbkdf_target_ms: Some(self.cost.iter_time),
            pbkdf_memory_kib: self.cost.pbkdf_memory,
            pbkdf_threads: self.cost.pbkdf_parallel,
            pbkdf_iterations: self.cost.pbkdf_force_iterations,
            hash: self.hash.clone(),
            keyslot_cipher: self.keyslot_cipher.clone(),
            keyslot_key_size_bits: self.keyslot_key_size,
            priority: self.priority.map(Into::into),
        }
    }
}

/// Reads an existing passphrase, after the check that the header permits the change.
fn existing(place: &HeaderPlaceArgs, key: &KeyArgs) -> Result<Key, Failure> {
    let passphrase = key.input().read(&place.path().display().to_string(), StdinUse::Free)?;
    Ok(Key::Passphrase(passphrase))
}

/// Refuses two keys from standard input: the first one reads to its end.
fn one_reads_stdin(key: &KeyArgs, new: &NewKeyArgs) -> Result<(), Failure> {
    let is_stdin = |file: &Option<PathBuf>| file.as_deref().is_some_and(|file| file == "-");
    let old_is_stdin = is_stdin(&key.key_file) || key.key_fd == Some(0);
    if old_is_stdin && is_stdin(&new.new_keyfile) {
        return Err(Failure::failed(
            "the old and the new key are both standard input; name a file for one of them, or \
             leave both out and give two lines",
        ));
    }
    Ok(())
}

fn done(path: &Path, keyslot: u32, deed: &str) {
    say(&format!("{}: keyslot {keyslot} was {deed}", path.display()));
}

/// Runs the action.
pub(crate) fn run(command: &KeyCommand) -> Result<(), Failure> {
    if let Some(place) = command.action.changed() {
        warn_without_lock(place.path(), &place.in_disk());
    }
    match &command.action {
        Action::Add(args) => add(args),
        Action::Change(args) => change(args),
        Action::Remove(args) => remove(args),
        Action::Kill(args) => kill(args),
        Action::Convert(args) => convert(args),
        Action::Priority(args) => priority(args),
        Action::List(args) => list(args),
    }
}

fn add(args: &AddArgs) -> Result<(), Failure> {
    let path = args.place.path();
    let keyslots = args.opening.keyslots(&args.place);
    // cryptsetup's rule: a lone --key-slot names the new keyslot.
    let (old_slot, new_slot) = match args.new_key_slot {
        Some(new_slot) => (args.key_slot, Some(new_slot)),
        None => (None, args.key_slot),
    };
    let options = args.keyslot.options(new_slot);
    keyslots.check(Planned::Add(new_slot))?;
    let volume_key = match &args.volume_key_file {
        Some(file) => Some(read_secret(file, "volume key")?),
        None => None,
    };
    let number = if args.unbound {
        keyslots.add_unbound(volume_key.as_ref(), &args.new.read(path)?, &options)?
    } else if let Some(volume_key) = &volume_key {
        add_with_volume_key(args, &keyslots, volume_key, &options)?
    } else if let Some(choice) = args.tokens.choice() {
        let opener = Opener::Token { choice: &choice, keyslot: old_slot };
        keyslots.add(&opener, &args.new.read(path)?, &options)?
    } else {
        one_reads_stdin(&args.key, &args.new)?;
        let old = existing(&args.place, &args.key)?;
        let new = args.new.read(path)?;
        keyslots.add(&Opener::Key { key: &old, keyslot: old_slot }, &new, &options)?
    };
    done(path, number, "added");
    Ok(())
}

fn add_with_volume_key(
    args: &AddArgs,
    keyslots: &Keyslots,
    volume_key: &SecretBytes,
    options: &NewKeyslot,
) -> Result<u32, Failure> {
    let path = args.place.path();
    // Before a person thinks of a passphrase.
    if !keyslots.confirms(volume_key)? {
        return Err(Failure::from(blockyard_crypt::Error::WrongVolumeKey).at(path.display()));
    }
    Ok(keyslots.add(&Opener::VolumeKey(volume_key), &args.new.read(path)?, options)?)
}

fn change(args: &ChangeArgs) -> Result<(), Failure> {
    let path = args.place.path();
    let keyslots = args.opening.keyslots(&args.place);
    one_reads_stdin(&args.key, &args.new)?;
    keyslots.check(Planned::Change(args.key_slot))?;
    let old = existing(&args.place, &args.key)?;
    let new = args.new.read(path)?;
    let options = args.keyslot.options(None);
    let number = keyslots.change(&old, args.key_slot, &new, &options, args.force)?;
    done(path, number, "changed");
    Ok(())
}

fn remove(args: &RemoveArgs) -> Result<(), Failure> {
    let path = args.place.path();
    let keyslots = args.opening.keyslots(&args.place);
    keyslots.check(Planned::Change(args.key_slot))?;
    let key = existing(&args.place, &args.key)?;
    let number = keyslots.remove(&key, args.key_slot, args.last.force)?;
    done(path, number, "removed");
    Ok(())
}

fn kill(args: &KillArgs) -> Result<(), Failure> {
    let path = args.place.path();
    let asks = !args.batch_mode || args.key.input().source != KeySource::Ask;
    let keyslots = args.opening.keyslots(&args.place);
    let last = if args.last.force { Last::Remove } else { Last::Keep };
    keyslots.check(Planned::Remove(args.key_slot, last))?;
    let read = || {
        let what = format!("a keyslot of {} that stays, or the last one", path.display());
        Ok::<_, Failure>(Key::Passphrase(args.key.input().read(&what, StdinUse::Free)?))
    };
    let proof = asks.then(read).transpose()?;
    keyslots.kill(args.key_slot, proof.as_ref(), args.last.force)?;
    done(path, args.key_slot, "removed");
    Ok(())
}

fn convert(args: &ConvertArgs) -> Result<(), Failure> {
    let path = args.place.path();
    let keyslots = args.opening.keyslots(&args.place);
    keyslots.check(Planned::Change(args.key_slot))?;
    let key = existing(&args.place, &args.key)?;
    let options = args.keyslot.options(None);
    let number = keyslots.change(&key, args.key_slot, &key, &options, args.force)?;
    done(path, number, "converted");
    Ok(())
}

fn priority(args: &PriorityArgs) -> Result<(), Failure> {
    let path = args.place.path();
    Keyslots::of(args.place.path())
        .place(args.place.in_disk())
        .set_priority(args.key_slot, args.priority.into())?;
    done(path, args.key_slot, "given its priority");
    Ok(())
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let (header, notices) = header::read(args.place.path(), &args.place.in_disk(), None)?;
    for notice in &notices {
        let notice = printable(&notice.to_string());
        say(&format!("warning: {}: {notice}", args.place.path().display()));
    }
    match header.info() {
        HeaderInfo::Luks1(info) => {
            print_keyslots(&info.keyslots, args.json, |keyslot| printable(&keyslot.kdf.kind))
        }
        HeaderInfo::Luks2(info) => print_keyslots(&info.keyslots, args.json, facts),
    }
}

/// The keyslots of a header, as `--json` prints them.
#[derive(Serialize)]
struct KeyslotList<'a, T> {
    keyslots: &'a BTreeMap<u32, T>,
}

/// Prints the keyslots as JSON, or a line for each.
fn print_keyslots<T: Serialize>(
    keyslots: &BTreeMap<u32, T>,
    as_json: bool,
    facts: impl Fn(&T) -> String,
) -> Result<(), Failure> {
    if as_json {
        return print(&json::line(&KeyslotList { keyslots }));
    }
    let lines = keyslots.iter().map(|(number, keyslot)| format!("{number}: {}\n", facts(keyslot)));
    print(&lines.collect::<String>())
}

/// Facts of a LUKS2 keyslot: its KDF, and what is unusual about it.
fn facts(keyslot: &luks2::KeyslotInfo) -> String {
    let kdf =
        keyslot.kdf.as_ref().map_or_else(|| "unusable".to_owned(), |kdf| printable(&kdf.kind));
    let mut words = vec![kdf];
    words.extend(keyslot.area.encryption.as_ref().map(|area| printable(&area.cipher)));
    if keyslot.priority != "normal" {
        words.push(format!("priority {}", keyslot.priority));
    }
    words.extend(keyslot.unbound.then(|| "unbound".to_owned()));
    words.extend(keyslot.problem.as_deref().map(printable));
    words.join(", ")
}
