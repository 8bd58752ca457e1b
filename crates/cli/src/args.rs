//! The command line: one definition, from which the parser, the shell completions and the man pages
//! are generated.
//!
//! Options have cryptsetup's names wherever cryptsetup has one, and its short forms: `-h` is
//! `--hash` in every command that takes a hash, and help is `-?` or `--help` there. `-h` without a
//! hash is help too.

mod cost;
mod jobs;
mod key;
mod rate;
mod scheduling;
mod token;
mod volume;
#[cfg(feature = "lab")]
mod world;

pub(crate) use cost::CostArgs;
pub(crate) use jobs::JobArgs;
pub(crate) use key::KeyArgs;
pub(crate) use rate::{RateArgs, parse_burst, rate_limits};
pub(crate) use scheduling::SchedulingArgs;
pub(crate) use token::{AskedTokenArgs, TokenArgs};
pub(crate) use volume::{
    HeaderArgs, HeaderCopy, HeaderPlaceArgs, PartitionArgs, PlainArgs, ProtectArgs, TcryptArgs,
    VolumeArgs, VolumeType,
};
#[cfg(feature = "lab")]
pub(crate) use world::WorldArgs;

use std::process::ExitCode;

use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand};

use crate::commands::{
    bench, complete, completions, control, doctor, dump, elevators, erase, fat_driver, files,
    format, header, info, keyslots, load, man, mount, repair, replay, resize, serve, table, tls,
    tokens, top, trace,
};
#[cfg(feature = "lab")]
use crate::commands::{lab, report, tune};
use crate::failure::Failure;
use crate::habits;
use crate::manual;
use crate::version;

/// Opens encrypted volumes without root and serves them as disks.
///
/// Blockyard opens LUKS1, LUKS2, plain dm-crypt, VeraCrypt, TrueCrypt and BitLocker volumes in user
/// space. It serves their plaintext as network block devices (NBD) and as disks of virtual machines
/// (vhost-user-blk), and mounts it by FUSE. It needs no root, no kernel module and no block device.
#[derive(Parser, Debug)]
#[command(
    name = "blockyard",
    version = version::SHORT,
    long_version = version::long(),
    disable_help_flag = true,
    disable_version_flag = true
)]
pub(crate) struct Cli {
    /// Print help: -? the list of commands, --help more about each
    #[arg(short = '?', short_alias = 'h', long, action = ArgAction::Help)]
    help: Option<bool>,

    /// Print the version; with `--version` the compiled features too
    #[arg(short = 'V', long, action = ArgAction::Version)]
    version: Option<bool>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
#[command(disable_help_flag = true)]
pub(crate) enum Command {
    Serve(Box<serve::ServeArgs>),
    Format(Box<format::FormatArgs>),
    Info(info::InfoArgs),
    Dump(Box<dump::DumpArgs>),
    Load(Box<load::LoadArgs>),
    Mount(Box<mount::MountArgs>),
    Umount(mount::UmountArgs),
    #[command(name = blockyard::mount::FAT_DRIVER, hide = true)]
    FatDriver(fat_driver::FatDriverArgs),
    Ls(Box<files::LsArgs>),
    Cp(Box<files::CpArgs>),
    Table(Box<table::TableArgs>),
    Repair(repair::RepairArgs),
    Key(Box<keyslots::KeyCommand>),
    Token(Box<tokens::TokenCommand>),
    Header(Box<header::HeaderCommand>),
    Tls(tls::TlsCommand),
    Erase(erase::EraseArgs),
    Resize(resize::ResizeArgs),
    Status(control::StatusArgs),
    Top(top::TopArgs),
    Suspend(control::SuspendArgs),
    Resume(control::ResumeArgs),
    Message(control::MessageArgs),
    Limit(control::LimitArgs),
    Backup(control::BackupArgs),
    Reload(control::ReloadArgs),
    Forget(control::ForgetArgs),
    Elevators(elevators::ElevatorsArgs),
    Bench(Box<bench::BenchArgs>),
    #[cfg(feature = "lab")]
    Report(report::ReportArgs),
    #[cfg(feature = "lab")]
    Tune(Box<tune::TuneArgs>),
    Doctor(doctor::DoctorArgs),
    Trace(trace::TraceArgs),
    Replay(Box<replay::ReplayArgs>),
    #[cfg(feature = "lab")]
    Lab(Box<lab::LabArgs>),
    Completions(completions::CompletionsArgs),
    #[command(hide = true)]
    Complete(complete::CompleteArgs),
    Man(man::ManArgs),
}

impl Command {
    /// Runs the command; returns the exit code of a success.
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let done = match self {
            Self::Serve(args) => return serve::run(args),
            Self::Format(args) => format::run(&args),
            Self::Info(args) => info::run(&args),
            Self::Dump(args) => dump::run(&args),
            Self::Load(args) => load::run(&args),
            Self::Mount(args) => mount::run(&args),
            Self::Umount(args) => mount::unmount(&args),
            Self::FatDriver(args) => fat_driver::run(&args),
            Self::Ls(args) => files::list(&args),
            Self::Cp(args) => files::copy(&args),
            Self::Table(args) => table::run(&args),
            Self::Repair(args) => repair::run(&args),
            Self::Key(args) => keyslots::run(&args),
            Self::Token(args) => tokens::run(&args),
            Self::Header(args) => header::run(&args),
            Self::Tls(args) => tls::run(&args),
            Self::Erase(args) => erase::run(&args),
            Self::Resize(args) => resize::run(&args),
            Self::Status(args) => control::status(&args),
            Self::Top(args) => top::run(&args),
            Self::Suspend(args) => control::suspend(&args),
            Self::Resume(args) => control::resume(&args),
            Self::Message(args) => control::message(&args),
            Self::Limit(args) => control::limit(&args),
            Self::Backup(args) => control::backup(&args),
            Self::Reload(args) => control::reload(&args),
            Self::Forget(args) => control::forget(&args),
            Self::Elevators(args) => elevators::run(&args),
            Self::Bench(args) => bench::run(&args),
            #[cfg(feature = "lab")]
            Self::Report(args) => report::run(&args),
            #[cfg(feature = "lab")]
            Self::Tune(args) => tune::run(&args),
            Self::Doctor(args) => doctor::run(&args),
            Self::Trace(args) => trace::run(&args),
            Self::Replay(args) => replay::run(&args),
            #[cfg(feature = "lab")]
            Self::Lab(args) => lab::run(&args),
            Self::Completions(args) => completions::run(&args),
            Self::Complete(args) => complete::run(&args),
            Self::Man(args) => man::run(&args),
        };
        done.map(|()| ExitCode::SUCCESS)
    }
}

/// `--help` of a command that has `-h` for `--hash`.
#[derive(Args, Debug)]
pub(crate) struct HelpArgs {
    /// Print help: -? on one screen, --help all of it
    #[arg(short = '?', long, action = ArgAction::Help, help_heading = None::<&str>)]
    help: Option<bool>,
}

/// `--help` of a command without `--hash`, where `-h` is help too.
#[derive(Args, Debug)]
pub(crate) struct ShortHelpArgs {
    /// Print help: -? or -h on one screen, --help all of it
    #[arg(
        short = '?',
        short_alias = 'h',
        long,
        action = ArgAction::Help,
        help_heading = None::<&str>
    )]
    help: Option<bool>,
}

/// Whether output files may be overwritten.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ForceArgs {
    /// Overwrite an existing output file
    ///
    /// Files in use are never overwritten.
    #[arg(long, alias = "overwrite", help_heading = None::<&str>)]
    pub(crate) force: bool,
}

/// The definition, with its manual.
pub(crate) fn definition() -> clap::Command {
    manual::completed(habits::accepting(Cli::command()))
}
