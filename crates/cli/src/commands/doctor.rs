//! `blockyard doctor`: what is slow or risky, and the command that mends it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use blockyard::Control;
use blockyard_crypt::Error as CryptError;
use blockyard_crypt::luks::Header;
use clap::{Args, ValueHint};
use serde_json::{Value, json};

use super::info::HeaderFile;
use crate::args::ShortHelpArgs;
use crate::config::{Config, ExportSpec};
use crate::doctor::machine::Ticks;
use crate::doctor::server::Looks;
use crate::doctor::{
    Finding, Grade, configuration, header, machine, place, print as text_of, quoted, server,
};
use crate::failure::Failure;
use crate::memory;
use crate::nbd::Uri;
use crate::output::print;
use crate::volume::Kind;

/// As long as `top` looks.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Say what is slow or risky about this machine, a volume, a configuration or a server, and what
/// mends it
///
/// Asks for no passphrase and changes nothing. Each finding is `risky` (data or secrets can be
/// lost), `slow`, or a `note` (a choice that others make differently), with the command that mends
/// it.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct DoctorArgs {
    /// Image files or block devices to look at, besides the machine
    #[arg(value_name = "VOLUME", value_hint = ValueHint::FilePath)]
    volumes: Vec<PathBuf>,

    /// Detached LUKS header of the volume
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "volumes")]
    header: Option<PathBuf>,

    /// Look at a configuration of `serve`, and at its volumes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,

    /// Look for a second at what goes on in a server that was started with `serve --control`
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    control: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Looks, and tells.
pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let root = Path::new("/");
    let mut findings = machine::findings(root);
    for path in &args.volumes {
        findings.extend(volume(root, path, args.header.as_deref(), true, Trim::HeaderDecides)?);
    }
    if let Some(path) = &args.config {
        let config = Config::read(path)?;
        findings.extend(configuration::findings(path, &config, cpus()));
        for export in &config.exports {
            findings.extend(exported(root, export)?);
        }
    }
    if let Some(socket) = &args.control {
        findings.extend(running(root, socket)?);
    }
    // Two exports may share a key, or a disk.
    let mut seen = Vec::new();
    for finding in findings {
        if !seen.contains(&finding) {
            seen.push(finding);
        }
    }
    let findings = seen;
    if args.json {
        let findings: Vec<Value> = findings.iter().map(Finding::json).collect();
        let text = serde_json::to_string_pretty(&json!({ "findings": findings }));
        return print(&(text.expect("it has no odd keys") + "\n"));
    }
    print(&text_of(&findings))
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// A server: twice, since what was before says little of what is now.
fn running(root: &Path, socket: &Path) -> Result<Vec<Finding>, Failure> {
    let control = Control::at(socket);
    let (before, then) = (control.status()?, Ticks::now(root));
    std::thread::sleep(BETWEEN_LOOKS);
    let (now, idle_cpus) = (control.status()?, Ticks::now(root).idle_cpus(then, cpus()));
    Ok(server::findings(&Looks { socket, now: &now, before: &before, idle_cpus }))
}

/// Whether TRIM is passed down.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trim {
    /// Of a read-only export.
    Never,
    /// If the header allows it.
    HeaderDecides,
    /// `allow_discards`.
    Passed,
}

fn exported(root: &Path, export: &ExportSpec) -> Result<Vec<Finding>, Failure> {
    let (header, is_luks) = match &export.volume.kind {
        Kind::Luks(luks) => (luks.header.as_deref(), true),
        Kind::Plain(_) | Kind::Table => (None, false),
    };
    let trim = match export {
        ExportSpec { read_only: true, .. } => Trim::Never,
        ExportSpec { allow_discards: true, .. } => Trim::Passed,
        _ => Trim::HeaderDecides,
    };
    volume(root, &export.volume.path, header, is_luks, trim)
}

/// A volume: where it lies, and what its header says if it has one, as one of LUKS must.
fn volume(
    root: &Path,
    path: &Path,
    detached: Option<&Path>,
    is_luks: bool,
    trim: Trim,
) -> Result<Vec<Finding>, Failure> {
    if path.to_str().is_some_and(Uri::is_uri) {
        return Err(Failure::failed(format!(
            "{}: an NBD server shows neither its file nor its disk; run doctor where they are",
            path.display()
        )));
    }
    std::fs::metadata(path).map_err(|error| {
        Failure::wrong_device(format!("{}: cannot look at it: {error}", path.display()))
    })?;
    let mut findings = place::findings(root, path, trim != Trim::Never);
    let header_path = detached.unwrap_or(path);
    let source = HeaderFile::open(header_path)?;
    match Header::read(&source) {
        Ok((header, notices)) => {
            let mend = format!("blockyard repair {}", quoted(header_path));
            let place = header_path.display().to_string();
            let found = |notice: &blockyard_crypt::luks::Notice| {
                Finding::new(Grade::Risky, &place, notice.to_string(), &mend)
            };
            findings.extend(notices.iter().map(found));
            let memory_bytes = memory::limit_bytes(root);
            findings.extend(header::findings(
                header_path,
                &header.info(),
                memory_bytes,
                trim == Trim::HeaderDecides,
            ));
        }
        Err(CryptError::Reused(signature)) => {
            let place = header_path.display().to_string();
            let seen = format!(
                "it holds {signature}, and of an older LUKS2 volume only the secondary header is \
                 left: it is not opened as a LUKS volume, and not repaired"
            );
            let mend = format!(
                "blockyard info --header-copy secondary {}, to look at the old volume",
                quoted(header_path)
            );
            findings.push(Finding::new(Grade::Risky, place, seen, mend));
        }
        Err(error @ (CryptError::NotLuks | CryptError::OtherFormat(_))) if is_luks => {
            let mend = "name a detached header with --header; a plain volume has none";
            let seen = match error {
                CryptError::OtherFormat(signature) => {
                    format!("no LUKS header is here, but {signature}")
                }
                _ => "no LUKS header is here: only where it lies was looked at".to_owned(),
            };
            findings.push(Finding::new(Grade::Note, header_path.display().to_string(), seen, mend));
        }
        // A plain volume or a table: it has none.
        Err(CryptError::NotLuks | CryptError::OtherFormat(_)) => {}
        Err(error) => return Err(Failure::from(error).at(header_path.display())),
    }
    Ok(findings)
}
