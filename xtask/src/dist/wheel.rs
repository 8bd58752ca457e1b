//! The wheel: the Python package for pip. Its native part uses the stable ABI, so one file serves
//! every Python from 3.9 on.
//!
//! `pip install ./python` builds the same with maturin. A release does not: maturin compiles all
//! crates again, with other features of theirs than the program has.

use crate::python;
use crate::tools::{self, tool};
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use toml::Table;

/// The name of the native part in the package.
const NATIVE: &str = "blockyard/_blockyard.abi3.so";

/// Libraries of every Linux with glibc, by the rules of manylinux (PEP 600).
const LIBRARIES: &[&str] = &["libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"];

/// Packs a folder: sorted, with one time, and with the list of its files (RECORD).
const PACK: &str = r#"
import base64, hashlib, pathlib, sys, time, zipfile
folder, file, info, seconds = sys.argv[1:]
folder = pathlib.Path(folder)
date = time.gmtime(int(seconds))[:6]
names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
def entry(name):
    entry = zipfile.ZipInfo(name, date)
    entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry
with zipfile.ZipFile(file, "w") as wheel:
    record = ""
    for name in names:
        data = (folder / name).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
        wheel.writestr(entry(name), data)
    wheel.writestr(entry(f"{info}/RECORD"), record + f"{info}/RECORD,,\n")
"#;

/// Makes the wheel in a folder, with a native part that was built.
pub(super) fn make(built: &Path, folder: &Path, version: &str, time_s: u64) -> Result<PathBuf> {
    let root = folder.join("wheel");
    let _ = fs::remove_dir_all(&root);
    let info = format!("blockyard-{version}.dist-info");
    for file in python::package_files()? {
        place(&tools::root().join("python").join(&file), &root.join(&file))?;
    }
    let native = root.join(NATIVE);
    tools::run(Command::new("objcopy").arg("--strip-all").args([built, &native]))?;
    let tag = format!("cp39-abi3-{}", platform(&native)?);
    let about = root.join(&info);
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        place(&tools::root().join(licence), &about.join("licenses").join(licence))?;
    }
    fs::write(about.join("METADATA"), metadata(version)?)?;
    let lines = ["Wheel-Version: 1.0", "Generator: cargo-x-dist", "Root-Is-Purelib: false"];
    fs::write(about.join("WHEEL"), format!("{}\nTag: {tag}\n", lines.join("\n")))?;
    let file = folder.join(format!("blockyard-{version}-{tag}.whl"));
    let mut pack = tool("/usr/bin/python3");
    pack.args(["-c", PACK]).args([&root, &file]).args([info, time_s.to_string()]);
    tools::run(&mut pack)?;
    fs::remove_dir_all(&root)?;
    Ok(file)
}

fn place(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file has a folder")?)?;
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(())
}

/// The oldest glibc that the library runs with, as pip names it.
fn platform(library: &Path) -> Result<String> {
    let needed = tools::read(Command::new("objdump").arg("-p").arg(library))?;
    for line in needed.lines().filter(|line| line.trim_start().starts_with("NEEDED")) {
        let name = line.split_whitespace().nth(1).unwrap_or_default();
        ensure!(LIBRARIES.contains(&name), "the wheel needs {name}, which pip cannot know");
    }
    let newest = needed.split_whitespace().filter_map(|word| {
        let (major, minor) = word.strip_prefix("GLIBC_")?.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    });
    let (major, minor): (u32, u32) = newest.max().context("the library needs no glibc")?;
    Ok(format!("manylinux_{major}_{minor}_x86_64"))
}

/// The facts of `pyproject.toml`, as a wheel has them.
fn metadata(version: &str) -> Result<String> {
    let folder = tools::root().join("python");
    let project: Table = fs::read_to_string(folder.join("pyproject.toml"))?.parse()?;
    let project = project["project"].as_table().context("pyproject.toml has no project")?;
    let word = |key: &str| {
        project.get(key).and_then(|value| value.as_str()).with_context(|| key.to_owned())
    };
    let mut text = format!("Metadata-Version: 2.4\nName: {}\nVersion: {version}\n", word("name")?);
    for (field, key) in [
        ("Summary", "description"),
        ("License-Expression", "license"),
        ("Requires-Python", "requires-python"),
    ] {
        let _ = writeln!(text, "{field}: {}", word(key)?);
    }
    text.push_str("License-File: LICENSE-APACHE\nLicense-File: LICENSE-MIT\n");
    for class in project["classifiers"].as_array().into_iter().flatten() {
        let _ = writeln!(text, "Classifier: {}", class.as_str().unwrap_or_default());
    }
    text.push_str("Description-Content-Type: text/markdown\n\n");
    text.push_str(&fs::read_to_string(folder.join(word("readme")?))?);
    Ok(text)
}
