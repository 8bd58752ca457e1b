//! Formats between programs: volumes of ours in cryptsetup, LUKS1 in qemu-img and nbdkit, in both
//! directions.

use super::content;
use crate::cases::Cases;
use crate::lab::Lab;
use crate::tools::{self, tool};
use crate::volume::{Maker, Recipe, Volume, noise};
use anyhow::{Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn run(cases: &mut Cases, lab: &Lab) {
    for (name, options) in [
        ("format-default", "--pbkdf-force-iterations 4 --pbkdf-memory 32768"),
        ("format-512", "--sector-size 512 --pbkdf pbkdf2 --pbkdf-force-iterations 1000"),
        (
            "format-256",
            "--cipher aes-xts-plain64 --key-size 256 --pbkdf argon2i \
          --pbkdf-force-iterations 4 --pbkdf-memory 32768 --pbkdf-parallel 2",
        ),
        (
            "format-cbc",
            "--cipher aes-cbc-essiv:sha256 --key-size 256 --sector-size 512 \
          --hash sha512 --pbkdf pbkdf2 --pbkdf-force-iterations 1000",
        ),
    ] {
        cases.run(&format!("cryptsetup opens what we format: {name}"), || {
            formatted(lab, name, options)
        });
    }
    cases.run("format measures argon2id to about two seconds", || measured(lab));
    cases.run("format refuses to overwrite a volume unasked", || overwrite(lab));
    cases.run("LUKS1: qemu-img reads what we wrote", || theirs_reads(lab, "l1-qr", qemu_out));
    cases.run("LUKS1: we read what qemu-img wrote", || theirs_writes(lab, "l1-qw", qemu_in));
    cases.run("LUKS1: nbdkit reads what we wrote", || theirs_reads(lab, "l1-nr", nbdkit_out));
    cases.run("LUKS1: we read what nbdkit wrote", || theirs_writes(lab, "l1-nw", nbdkit_in));
    cases.run("LUKS1: we read a volume made by qemu-img", || made_by_qemu(lab));
}

fn opens(lab: &Lab, image: &Path) -> Result<String> {
    let dump = tools::read(tool("cryptsetup").arg("luksDump").arg(image))?;
    let mut open = tool("cryptsetup");
    open.args(["open", "--test-passphrase", "--key-file"]).arg(lab.pass()).arg(image);
    tools::run(&mut open)?;
    Ok(dump)
}

fn formatted(lab: &Lab, name: &str, options: &str) -> Result<String> {
    let image = lab.path(&format!("{name}.img"));
    let mut format = lab.blockyard(&["format", "--size", "64M"]);
    format.arg(&image).arg("--key-file").arg(lab.pass()).args(options.split_whitespace());
    tools::run(&mut format)?;
    let len_bytes = fs::metadata(&image)?.len();
    ensure!(len_bytes >= 64 << 20, "the image has {len_bytes} bytes");
    let dump = opens(lab, &image)?;
    ensure!(dump.contains("Version:       \t2"), "not LUKS2: {dump}");
    let mut repair = tool("cryptsetup");
    let checked = tools::output(repair.args(["repair", "-q"]).arg(&image))?;
    let said = tools::text(&checked.stderr);
    ensure!(checked.status.success(), "cryptsetup repair finds fault: {said}");
    Ok(String::new())
}

fn measured(lab: &Lab) -> Result<String> {
    let image = lab.path("measured.img");
    let mut format = lab.blockyard(&["format", "--size", "32M"]);
    tools::run(format.arg(&image).arg("--key-file").arg(lab.pass()))?;
    let dump = opens(lab, &image)?;
    ensure!(dump.contains("argon2id"), "the default is not argon2id: {dump}");
    let field = |name: &str| {
        let line = dump.lines().find_map(|line| line.trim().strip_prefix(name));
        line.unwrap_or("?").trim().to_owned()
    };
    Ok(format!("memory {} KiB, time cost {}", field("Memory:"), field("Time cost:")))
}

fn overwrite(lab: &Lab) -> Result<String> {
    let image = lab.path("precious.img");
    let recipe = Recipe { name: "precious", maker: Maker::Cryptsetup, options: "--type luks1" };
    let volume = recipe.make(lab)?;
    ensure!(volume.image == image);
    let before = fs::read(&image)?;
    let mut format = lab.blockyard(&["format"]);
    let ended = tools::output(format.arg(&image).arg("--key-file").arg(lab.pass()))?;
    ensure!(!ended.status.success(), "it did, without a question");
    ensure!(fs::read(&image)? == before, "it refused, and changed the image all the same");
    Ok(tools::text(&ended.stderr).trim().to_owned())
}

fn luks1(lab: &Lab, name: &'static str) -> Result<Volume> {
    Recipe { name, maker: Maker::Cryptsetup, options: "--type luks1 -c aes-xts-plain64" }.make(lab)
}

/// Copies the plaintext between an image and a file with a foreign program.
type Copy = fn(&Lab, image: &Path, plain: &Path) -> Result<()>;

fn theirs_reads(lab: &Lab, name: &'static str, copy: Copy) -> Result<String> {
    let volume = luks1(lab, name)?;
    let server = volume.serve(lab, &[])?;
    let want = content::fill(server.socket(), 5)?;
    server.stop()?;
    let plain = lab.path("plain.out");
    let _ = fs::remove_file(&plain);
    copy(lab, &volume.image, &plain)?;
    content::same(&fs::read(plain)?, &want)?;
    Ok(String::new())
}

fn theirs_writes(lab: &Lab, name: &'static str, copy: Copy) -> Result<String> {
    let volume = luks1(lab, name)?;
    let server = volume.serve(lab, &[])?;
    let len_bytes = content::read(server.socket())?.len();
    server.stop()?;
    let want = noise(6, len_bytes);
    let plain = lab.write("plain.in", &want)?;
    copy(lab, &volume.image, &plain)?;
    let server = volume.serve(lab, &["--read-only"])?;
    content::same(&content::read(server.socket())?, &want)?;
    server.stop()?;
    Ok(String::new())
}

fn secret(lab: &Lab) -> String {
    format!("secret,id=pass,file={}", lab.pass().display())
}

fn luks_driver(image: &Path) -> String {
    format!("driver=luks,key-secret=pass,file.driver=file,file.filename={}", image.display())
}

fn qemu_out(lab: &Lab, image: &Path, plain: &Path) -> Result<()> {
    let mut convert = tool("qemu-img");
    convert.args(["convert", "--object", &secret(lab), "--image-opts", &luks_driver(image)]);
    tools::run(convert.args(["-O", "raw"]).arg(plain)).map(drop)
}

fn qemu_in(lab: &Lab, image: &Path, plain: &Path) -> Result<()> {
    let mut convert = tool("qemu-img");
    convert.args(["convert", "--object", &secret(lab), "-f", "raw", "-n"]).arg(plain);
    tools::run(convert.args(["--target-image-opts", &luks_driver(image)])).map(drop)
}

/// Runs nbdkit with its luks filter for one nbdcopy.
fn nbdkit(lab: &Lab, image: &Path, copy: &str) -> Result<()> {
    tools::need("nbdcopy")?;
    let mut nbdkit: Command = tool("nbdkit");
    nbdkit.args(["-U", "-", "--filter=luks", "file"]).arg(image);
    nbdkit.arg(format!("passphrase=+{}", lab.pass().display())).args(["--run", copy]);
    tools::run(&mut nbdkit).map(drop)
}

fn nbdkit_out(lab: &Lab, image: &Path, plain: &Path) -> Result<()> {
    nbdkit(lab, image, &format!("nbdcopy \"$uri\" {}", plain.display()))
}

fn nbdkit_in(lab: &Lab, image: &Path, plain: &Path) -> Result<()> {
    nbdkit(lab, image, &format!("nbdcopy {} \"$uri\"", plain.display()))
}

fn made_by_qemu(lab: &Lab) -> Result<String> {
    let image: PathBuf = lab.path("qemu.luks");
    let mut create = tool("qemu-img");
    create.args(["create", "-q", "--object", &secret(lab), "-f", "luks"]);
    create.args(["-o", "key-secret=pass,iter-time=10"]).arg(&image).arg("16M");
    // It measures its KDF, and gives up if the kernel counts no CPU time for the first iterations.
    let is_unmeasured = |outcome: &Result<_>| {
        outcome.as_ref().is_err_and(|error| error.to_string().contains("accurate CPU usage"))
    };
    let mut made = tools::run(&mut create);
    for _ in 0..9 {
        if is_unmeasured(&made) {
            made = tools::run(&mut create);
        }
    }
    made?;
    let want = noise(8, 16 << 20);
    let plain = lab.write("qemu.plain", &want)?;
    qemu_in(lab, &image, &plain)?;
    lab.give(&image)?;
    let pass = lab.pass().display().to_string();
    let server = lab.serve("qemu", &[&image.display().to_string(), "--key-file", &pass])?;
    content::same(&content::read(server.socket())?, &want)?;
    server.stop()?;
    Ok(String::new())
}
