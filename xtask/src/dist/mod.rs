//! `cargo x dist`: the release as it is shipped, in `target/dist`.
//!
//! The program has no symbols; they are in `blockyard.debug` beside it, and backtraces and
//! debuggers find that file by its name. The static program needs no library of the system, and its
//! symbols are nowhere. Both name the libraries in them ([`sbom`]). The packages for Debian and for
//! RPM systems and the image for containers have the first program; the wheel has the library for
//! Python. Their bytes depend on program, library and commit only.

mod check;
mod deb;
mod oci;
mod rpm;
mod sbom;
mod static_program;
mod tree;
mod wheel;

use crate::{lab, tools};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Size limit of the program. It has 16.3 MB; with symbols, five times that.
const SIZE_MAX_BYTES: u64 = 16 << 20;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the program and its symbols.
    #[arg(long)]
    program: bool,
    /// Then make the packages once more and compare them, install and remove them in bare roots of
    /// Debian 12 and 13 and by RPM, and run the image and the static program, which is made once.
    #[arg(long, conflicts_with = "program")]
    check: bool,
    /// Without the wheel for Python, whose library takes minutes to build.
    #[arg(long, conflicts_with = "program")]
    no_wheel: bool,
    /// Without the static program, which takes minutes to build.
    #[arg(long, conflicts_with = "program")]
    no_static: bool,
}

/// Facts that stand in every package.
struct Release {
    version: String,
    /// Time of the commit in seconds since 1970: the time of all files.
    time_s: u64,
    folder: PathBuf,
    /// The program without symbols.
    program: PathBuf,
    /// The native part of the Python package.
    python: Option<PathBuf>,
}

impl Release {
    fn of(program: PathBuf, python: Option<PathBuf>) -> Result<Release> {
        Ok(Release { version: version()?, time_s: time_s()?, folder: folder(), program, python })
    }
}

const SUMMARY: &str = "Encrypted disks without root and without a kernel module";
const ABOUT: &str = "\
Blockyard opens LUKS, plain dm-crypt, VeraCrypt, TrueCrypt and BitLocker volumes. It serves them as
disks for QEMU, the kernel and NBD programs, mounts them, and copies files out of them.";

pub(crate) fn run(args: &Args) -> Result<()> {
    let program = program()?;
    if args.program {
        return Ok(());
    }
    let python = if args.no_wheel { None } else { Some(lab::build_python(true)?) };
    let release = Release::of(program, python)?;
    let files = packages(&release)?;
    let static_program = if args.no_static { None } else { Some(static_program::make(&release)?) };
    sums(&release.folder, files.iter().chain(&static_program))?;
    if args.check {
        let again = release.folder.join("again");
        fs::create_dir_all(&again)?;
        let program = release.program.clone();
        let second = packages(&Release { folder: again.clone(), ..release })?;
        check::are_equal(&files, &second)?;
        fs::remove_dir_all(&again)?;
        check::works(&program, &files, static_program.as_deref())?;
    }
    Ok(())
}

/// Makes the package for Debian only; returns its file.
pub(crate) fn debian_package() -> Result<PathBuf> {
    let release = Release::of(program()?, None)?;
    let root = tree::stage(&release)?;
    let file = deb::make(&release, &root)?;
    fs::remove_dir_all(&root)?;
    Ok(file)
}

/// Makes only the wheel, in a folder.
pub(crate) fn wheel(built: &Path, folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder)?;
    wheel::make(built, folder, &version()?, time_s()?)
}

/// Place of the program and the packages.
fn folder() -> PathBuf {
    lab::target().join("dist")
}

/// Makes all packages; returns their files.
fn packages(release: &Release) -> Result<Vec<PathBuf>> {
    let root = tree::stage(release)?;
    let mut files = vec![
        deb::make(release, &root)?,
        rpm::make(release, &root)?,
        oci::make(release)?,
        sbom::make(release)?,
    ];
    if let Some(built) = &release.python {
        files.push(wheel::make(built, &release.folder, &release.version, release.time_s)?);
    }
    fs::remove_dir_all(&root)?;
    for file in &files {
        let len_bytes = fs::metadata(file)?.len();
        println!("{}: {:.1} MB", file.display(), len_bytes as f64 / 1e6);
    }
    Ok(files)
}

/// Builds the program, and parts it from its symbols.
fn program() -> Result<PathBuf> {
    let dist = folder();
    fs::create_dir_all(&dist)?;
    let built = lab::build()?;
    let program = dist.join("blockyard");
    let symbols = dist.join("blockyard.debug");
    tools::need("objcopy")?;
    tools::run(Command::new("objcopy").arg("--only-keep-debug").args([&built, &symbols]))?;
    // The link holds the name of the file without its folder.
    strip(&built, &program, &["--add-gnu-debuglink=blockyard.debug"])?;
    let len_bytes = fs::metadata(&program)?.len();
    ensure!(len_bytes <= SIZE_MAX_BYTES, "the program has {len_bytes} bytes");
    find_symbols(&program, &symbols)?;
    let version = tools::read(Command::new(&program).arg("-V"))?;
    println!("{}: {}, {:.1} MB", program.display(), version.trim(), len_bytes as f64 / 1e6);
    println!("{}: its symbols", symbols.display());
    Ok(program)
}

/// Copies a program without its symbols, and adds the list of its libraries.
fn strip(built: &Path, program: &Path, words: &[&str]) -> Result<()> {
    let folder = folder();
    let list = folder.join("section");
    fs::write(&list, sbom::section()?)?;
    let section = format!("{}=section", sbom::SECTION);
    let mut strip = Command::new("objcopy");
    strip.current_dir(&folder).args(["--strip-all", "--add-section", &section]).args(words);
    tools::run(strip.args([built, program]))?;
    Ok(fs::remove_file(&list)?)
}

/// The version in the workspace's manifest.
fn version() -> Result<String> {
    let manifest = fs::read_to_string(tools::root().join("Cargo.toml"))?;
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = \""));
    let version = line.and_then(|rest| rest.split('"').next());
    Ok(version.context("Cargo.toml has no version")?.to_owned())
}

/// `SOURCE_DATE_EPOCH`, or the time of the commit.
fn time_s() -> Result<u64> {
    if let Ok(given) = std::env::var("SOURCE_DATE_EPOCH") {
        return given.parse().context("SOURCE_DATE_EPOCH is no number of seconds");
    }
    let mut git = Command::new("git");
    git.current_dir(tools::root()).args(["log", "-1", "--format=%ct"]);
    tools::read(&mut git)?.trim().parse().context("the time of the commit")
}

/// Writes the checksums of all files.
fn sums<'a>(folder: &Path, files: impl Iterator<Item = &'a PathBuf>) -> Result<()> {
    let mut names: Vec<&std::ffi::OsStr> = files.filter_map(|file| file.file_name()).collect();
    names.extend(["blockyard", "blockyard.debug"].map(std::ffi::OsStr::new));
    let mut sum = tools::tool("sha256sum");
    let text = tools::read(sum.current_dir(folder).args(names))?;
    fs::write(folder.join("SHA256SUMS"), text)?;
    println!("{}: their checksums", folder.join("SHA256SUMS").display());
    Ok(())
}

/// The line of a function must be found from the program, although only the other file has it.
fn find_symbols(program: &Path, symbols: &Path) -> Result<()> {
    let names = tools::read(Command::new("nm").arg("--demangle").arg(symbols))?;
    let address = names.lines().find_map(|line| line.split_once(" t blockyard::"));
    let (address, _) = address.context("no function of ours among the symbols")?;
    let mut find = Command::new("addr2line");
    let line = tools::read(find.arg("--exe").arg(program).arg(address))?;
    ensure!(line.contains(".rs:"), "the symbols are not found beside the program: {line}");
    Ok(())
}
