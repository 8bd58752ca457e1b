//! `blockyard doctor`: finds slow and risky settings, and names commands that correct them.

mod words;

use std::path::{Path, PathBuf};
use std::time::Duration;

use blockyard::Control;
use blockyard::doctor::{self, Checked, Finding, Serving, Trim};
use clap::{Args, ValueHint};
use serde::Serialize;

use self::words::Words;
use crate::args::{PartitionArgs, ShortHelpArgs};
use crate::commands::serve::tls::TlsMode;
use crate::config::{Config, ExportSpec};
use crate::failure::Failure;
use crate::json::pretty;
use crate::key::KeySource;
use crate::output::print;
use crate::volume_spec::VolumeFormat;

/// The interval of `top`.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Find slow or risky settings of a machine, a volume, a configuration or a server
///
/// The command asks for no passphrase and changes nothing. Each finding is `risky` (data or secrets
/// can be lost), `slow`, or a `note` (a choice that others make differently), with the command that
/// corrects it.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct DoctorArgs {
    /// Image files or block devices to check, besides the machine
    #[arg(value_name = "VOLUME", value_hint = ValueHint::FilePath)]
    volumes: Vec<PathBuf>,

    #[command(flatten)]
    partition: PartitionArgs,

    /// Detached LUKS header of the volume
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "volumes")]
    header: Option<PathBuf>,

    /// Check a configuration of `serve`, and its volumes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,

    /// Check a server that runs with `serve --control`, for one second
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    control: Option<PathBuf>,

    /// Check the certificates and keys of a directory, for NBD over TLS
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    tls: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// The JSON of the findings.
#[derive(Serialize)]
struct Report {
    findings: Vec<Words>,
}

/// Checks, and prints the findings.
pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let mut findings = doctor::machine();
    for path in &args.volumes {
        let header = args.header.as_deref();
        let place = args.partition.place();
        let checked =
            Checked { path, place: &place, header, is_luks: true, trim: Trim::HeaderDecides };
        findings.extend(doctor::volume(&checked)?);
    }
    if let Some(path) = &args.config {
        let config = Config::read(path)?;
        let cpus = config.placement.cpus().map_err(|failure| failure.at(path.display()))?;
        findings.extend(serving(path, &config, cpus).findings());
        for export in &config.exports {
            findings.extend(doctor::volume(&checked(export))?);
        }
    }
    if let Some(socket) = &args.control {
        findings.extend(doctor::server(&Control::at(socket), BETWEEN_LOOKS)?);
    }
    if let Some(dir) = &args.tls {
        findings.extend(doctor::tls(dir)?);
    }
    let findings = each_once(findings);
    if args.json {
        return print(&pretty(&Report { findings: findings.iter().map(Words::of).collect() }));
    }
    print(&words::text(&findings))
}

/// Two exports may share a key or a disk.
fn each_once(findings: Vec<Finding>) -> Vec<Finding> {
    let mut seen = Vec::new();
    for finding in findings {
        if !seen.contains(&finding) {
            seen.push(finding);
        }
    }
    seen
}

fn serving(path: &Path, config: &Config, cpus: Option<Vec<u16>>) -> Serving {
    let key_file = |export: &ExportSpec| match &export.volume.key.source {
        KeySource::File(path) => Some(path.clone()),
        _ => None,
    };
    Serving {
        path: path.to_owned(),
        address: config.listen.clone().filter(|_| config.tls.mode() != TlsMode::Require),
        worker_threads: config.threads.map(usize::from),
        cpus: cpus.map(|cpus| cpus.len()),
        key_files: config.exports.iter().filter_map(key_file).collect(),
    }
}

fn checked(export: &ExportSpec) -> Checked<'_> {
    let (header, is_luks) = match &export.volume.kind {
        VolumeFormat::Luks(luks) => (luks.header.as_deref(), true),
        VolumeFormat::Plain(_)
        | VolumeFormat::Tcrypt(_)
        | VolumeFormat::Bitlk(_)
        | VolumeFormat::Table => (None, false),
    };
    let trim = match export {
        ExportSpec { read_only: true, .. } => Trim::Never,
        ExportSpec { allow_discards: true, .. } => Trim::Passed,
        _ => Trim::HeaderDecides,
    };
    Checked { path: &export.volume.path, place: &export.volume.place, header, is_luks, trim }
}
