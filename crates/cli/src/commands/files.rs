//! `blockyard ls` and `cp`: files in a volume, without FUSE.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use blockyard::files::{CopyOptions, Entry, Files, Kind, Skipped};
use blockyard::{Error, Settings, Volume};
use clap::{Args, ValueHint};
use serde::Serialize;

use crate::args::{ForceArgs, HelpArgs, VolumeArgs};
use crate::failure::{Failure, printable};
use crate::json::pretty;
use crate::key::StdinUse;
use crate::output::{InUse, print, say};
use crate::time::utc;

/// List files in a volume, without mounting it
///
/// The last `:/` in VOLUME:/PATH that does not belong to a `://` separates the volume from the
/// path. Without it, the root is listed. File systems: ext2, ext3, ext4, FAT and
/// ISO 9660. Times are in UTC.
#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    mut_arg("volume", |volume| volume.required(true).index(1).value_name("VOLUME[:/PATH]")
        .help("Image file or block device, and a file or directory in it")),
    mut_arg("table", |table| table.hide(true)),
    mut_arg("keyfile_size", |size| size.short(None))
)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    volume: VolumeArgs,

    /// One line for each file: permissions, owner, group, size, time, name
    #[arg(short = 'l', long)]
    long: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    inner: InnerArgs,

    #[command(flatten)]
    help: HelpArgs,
}

/// Copy files out of a volume, without mounting it
///
/// The last `:/` in VOLUME:/PATH that does not belong to a `://` separates the volume from the
/// path. File systems: ext2, ext3, ext4, FAT and ISO 9660. The copy has the permissions and times
/// of the original and belongs to you. Nothing is written outside of TARGET.
#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    mut_arg("volume", |volume| volume.required(true).index(1).value_name("VOLUME:/PATH")
        .help("Image file or block device, and a file or directory in it")),
    mut_arg("table", |table| table.hide(true))
)]
pub(crate) struct CpArgs {
    #[command(flatten)]
    volume: VolumeArgs,

    /// Directory, or name of the copy; `-` is standard output
    #[arg(value_name = "TARGET", index = 2, value_hint = ValueHint::AnyPath)]
    target: PathBuf,

    /// Copy directories with all that is in them, and symbolic links as links
    #[arg(short = 'r', long, visible_short_alias = 'R')]
    recursive: bool,

    #[command(flatten)]
    inner: InnerArgs,

    #[command(flatten)]
    force: ForceArgs,

    #[command(flatten)]
    help: HelpArgs,
}

/// Partition inside a volume.
#[derive(Args, Debug)]
struct InnerArgs {
    /// Use this partition of the disk inside the volume: its number, UUID or name
    #[arg(long, value_name = "N|UUID|NAME")]
    inner_partition: Option<String>,
}

/// A volume, and a path in it.
struct Place {
    args: VolumeArgs,
    /// `None` without `:/`.
    path: Option<PathBuf>,
}

impl Place {
    fn new(args: &VolumeArgs) -> Result<Self, Failure> {
        let text = args.volume.as_deref().unwrap_or(Path::new(""));
        let (volume, path) = split(text);
        if volume.as_os_str().is_empty() {
            return Err(Failure::failed(format!(
                "{}: the volume in front of `:/` is missing",
                text.display()
            )));
        }
        if path.is_none() {
            check_colon(text)?;
        }
        let args = VolumeArgs { volume: Some(volume.to_owned()), ..args.clone() };
        Ok(Self { args, path: path.map(Path::to_owned) })
    }

    /// Opens the volume and its file system.
    fn open(&self, inner: &InnerArgs, in_use: &mut InUse) -> Result<(Volume, Files), Failure> {
        let spec = self.args.spec()?;
        *in_use = InUse::of_paths(spec.paths());
        let settings = Settings { read_only: true, ..Settings::default() };
        let volume = spec.prepare(settings, StdinUse::Free)?.unlock()?.start()?;
        in_use.add_volume(&volume);
        let files = volume.files(inner.inner_partition.as_deref())?;
        Ok((volume, files))
    }
}

/// The volume and the path of `VOLUME:/PATH`.
fn split(text: &Path) -> (&Path, Option<&Path>) {
    let bytes = text.as_os_str().as_bytes();
    let ends = |at: &usize| bytes[*at..].starts_with(b":/") && bytes.get(at + 2) != Some(&b'/');
    let Some(at) = (0..bytes.len()).rev().find(ends) else { return (text, None) };
    let part = |bytes| Path::new(OsStr::from_bytes(bytes));
    (part(&bytes[..at]), Some(part(&bytes[at + 1..])))
}

/// A path in a volume is absolute: `home.img:etc` is the name of a file outside.
fn check_colon(text: &Path) -> Result<(), Failure> {
    let bytes = text.as_os_str().as_bytes();
    let Some(at) = bytes.iter().rposition(|byte| *byte == b':') else { return Ok(()) };
    let [volume, path] = [&bytes[..at], &bytes[at + 1..]].map(OsStr::from_bytes).map(Path::new);
    if text.exists() || !volume.exists() {
        return Ok(());
    }
    Err(Failure::wrong_device(format!(
        "{}: there is no such file; a path in the volume begins with a slash: {}:/{}",
        text.display(),
        volume.display(),
        path.display()
    )))
}

/// A file in `ls --json`.
#[derive(Serialize)]
struct Shown {
    name: String,
    /// The bytes in hexadecimal digits, of a name that is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    #[serde(rename = "type")]
    kind: &'static str,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

/// Lists a directory, or a file.
pub(crate) fn list(args: &LsArgs) -> Result<(), Failure> {
    let place = Place::new(&args.volume)?;
    let path = place.path.as_deref().unwrap_or(Path::new("/"));
    let (_volume, mut files) = place.open(&args.inner, &mut InUse::default())?;
    let entry = files.entry(path, true)?;
    let (entries, mut damaged) = if entry.kind == Kind::Directory {
        let listing = files.list(path)?;
        let entries = listing.entries.into_iter().map(|entry| (path.join(&entry.name), entry));
        (entries.collect(), listing.damaged)
    } else {
        (vec![(path.to_owned(), files.entry(path, false)?)], Vec::new())
    };
    let mut shown = Vec::new();
    for (path, entry) in &entries {
        let is_shown = entry.kind == Kind::Link && (args.long || args.json);
        let target = is_shown.then(|| files.target(path)).transpose();
        let target = target.unwrap_or_else(|error| {
            damaged.push(error);
            None
        });
        shown.push(Shown::new(entry, target.as_deref()));
    }
    print(&if args.json { pretty(&shown) } else { lines(&entries, &shown, args.long) })?;
    // One error is the last line.
    let Some(last) = damaged.pop() else { return Ok(()) };
    damaged.into_iter().for_each(|error| say(&format!("warning: {}", Failure::from(error))));
    Err(last.into())
}

fn lines(entries: &[(PathBuf, Entry)], shown: &[Shown], is_long: bool) -> String {
    let width = shown.iter().map(|file| file.size.to_string().len()).max().unwrap_or(0);
    let lines = entries.iter().zip(shown).map(|((_, entry), shown)| {
        let name = printable(&shown.name);
        if !is_long {
            return name + "\n";
        }
        let link = shown.target.as_ref();
        let link = link.map_or_else(String::new, |target| format!(" -> {}", printable(target)));
        let owner = |number: Option<u32>| number.map_or_else(|| "-".into(), |n| n.to_string());
        let uid = owner(shown.uid);
        let gid = owner(shown.gid);
        let time = shown.modified.as_deref().map_or_else(|| "-".into(), minutes);
        format!(
            "{} {uid:>5} {gid:>5} {:>width$} {time:>16} {name}{link}\n",
            permissions(entry),
            shown.size,
        )
    });
    lines.collect()
}

impl Shown {
    fn new(entry: &Entry, target: Option<&Path>) -> Self {
        let bytes = entry.name.as_bytes();
        let hex = || bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            name: entry.name.to_string_lossy().into_owned(),
            name_hex: entry.name.to_str().is_none().then(hex),
            kind: entry.kind.name(),
            size: entry.len,
            mode: entry.mode.map(|mode| format!("{mode:04o}")),
            uid: entry.owner.map(|(uid, _)| uid),
            gid: entry.owner.map(|(_, gid)| gid),
            modified: entry.modified.map(|time| utc(time.seconds)),
            target: target.map(|target| target.to_string_lossy().into_owned()),
        }
    }
}

/// `2024-02-29 23:59`.
fn minutes(time: &str) -> String {
    time[..16].replace('T', " ")
}

/// `drwxr-xr-x`; without permissions, those of a copy.
fn permissions(entry: &Entry) -> String {
    let (letter, usual) = match entry.kind {
        Kind::File => ('-', 0o600),
        Kind::Directory => ('d', 0o700),
        Kind::Link => ('l', 0o777),
        Kind::BlockDevice => ('b', 0o600),
        Kind::CharacterDevice => ('c', 0o600),
        Kind::Fifo => ('p', 0o600),
        Kind::Socket => ('s', 0o600),
    };
    let mode = entry.mode.unwrap_or(usual);
    let bits = (0..9).map(|bit| {
        let is_set = mode & (0o400 >> bit) != 0;
        // Set-user-ID, set-group-ID and the sticky bit take the place of an `x`.
        let special = bit % 3 == 2 && mode & (0o4000 >> (bit / 3)) != 0;
        match (special, is_set) {
            (true, true) => ['s', 's', 't'][bit / 3],
            (true, false) => ['S', 'S', 'T'][bit / 3],
            (false, true) => ['r', 'w', 'x'][bit % 3],
            (false, false) => '-',
        }
    });
    std::iter::once(letter).chain(bits).collect()
}

/// Copies a file or directory.
pub(crate) fn copy(args: &CpArgs) -> Result<(), Failure> {
    let place = Place::new(&args.volume)?;
    let Some(path) = place.path.as_deref() else {
        let mut problem = format!(
            "{}: name a file in a volume, as in home.img:/etc/fstab; cp(1) copies other files",
            args.volume.volume.as_deref().unwrap_or(Path::new("")).display()
        );
        if split(&args.target).1.is_some() {
            problem += "; cp copies out of a volume only, `blockyard mount` gives write access";
        }
        return Err(Failure::failed(problem));
    };
    let mut in_use = InUse::default();
    let (_volume, mut files) = place.open(&args.inner, &mut in_use)?;
    if args.target.as_os_str() == "-" {
        return to_stdout(&mut files, path);
    }
    let options = CopyOptions { recursive: args.recursive, replace: args.force.force };
    let mut skip = |skipped: &Skipped| {
        let path = skipped.path.display();
        say(&format!("warning: {path}: skipped, because it is a {}", skipped.kind.name()));
    };
    Ok(files.copy(path, &args.target, &options, &in_use, &mut skip)?)
}

fn to_stdout(files: &mut Files, path: &Path) -> Result<(), Failure> {
    let failed = |error| Failure::failed(format!("cannot write to standard output: {error}"));
    let stdout = rustix::stdio::stdout().try_clone_to_owned().map_err(failed)?;
    match files.copy_to(path, &mut File::from(stdout)) {
        Err(Error::Writer(error)) => Err(failed(error)),
        result => result.map(|_| ()).map_err(Failure::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_slash_after_a_colon_separates_the_path() {
        let check = |text: &str, volume: &str, path: Option<&str>| {
            assert_eq!(split(Path::new(text)), (Path::new(volume), path.map(Path::new)), "{text}");
        };
        check("home.img", "home.img", None);
        check("home.img:/", "home.img", Some("/"));
        check("home.img:/etc/fstab", "home.img", Some("/etc/fstab"));
        check("a:b:/c:d", "a:b", Some("/c:d"));
        check("a:/b.img:/c", "a:/b.img", Some("/c"));
        check("nbd://host:10809/home", "nbd://host:10809/home", None);
        check("nbd://host/home:/etc", "nbd://host/home", Some("/etc"));
        check("nbd+unix:///home?socket=s:/etc", "nbd+unix:///home?socket=s", Some("/etc"));
        check(":/etc", "", Some("/etc"));
    }
}
