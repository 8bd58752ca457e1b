//! The real kernel's dm-crypt, booted as an ordinary process: it reads our data, we read its data,
//! and its own table text opens the volume here.

use super::content;
use crate::cases::Cases;
use crate::lab::{Door, Lab};
use crate::tools;
use crate::volume::{RECIPES, Volume, noise};
use anyhow::{Context, Result, anyhow, bail};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Offset of the guest's writes, as in `tests/kernel/exchange.sh`.
const KERNEL_WRITES_AT: usize = 4 << 20;

/// One volume of the exchange, with its content before and after the guest.
struct Exchange {
    volume: Volume,
    content: Vec<u8>,
}

pub(crate) fn run(cases: &mut Cases, lab: &Lab) {
    if !cases.wants_some("kernel") {
        return;
    }
    let mut exchanges = Vec::new();
    let mut plan = Vec::new();
    for recipe in RECIPES {
        match prepare(lab, recipe) {
            Ok(exchange) => {
                plan.push(plan_line("raw", plan.len(), &exchange.volume, lab));
                exchanges.push(exchange);
            }
            Err(error) => cases.verdict(&read_name(recipe.name), Err(error)),
        }
    }
    let tree = ext4_volume(lab);
    if let Ok(volume) = &tree {
        plan.push(plan_line("ext4", plan.len(), volume, lab));
    }
    let mut images: Vec<_> = exchanges.iter().map(|e| e.volume.image.as_path()).collect();
    images.extend(tree.as_ref().map(|volume| volume.image.as_path()));
    let said = boot(lab, &plan.concat(), &images);
    cases.verdict(
        "kernel boots",
        said.as_ref().map(|_| String::new()).map_err(|e| anyhow!("{e:#}")),
    );
    let Ok(said) = said else { return };
    for exchange in &mut exchanges {
        let name = exchange.volume.name;
        cases.verdict(&read_name(name), kernel_reads(&said, exchange));
        overlay(&mut exchange.content);
        cases.run(&format!("we read what the kernel wrote: {name}"), || we_read(lab, exchange));
        cases.run(&format!("the kernel's table opens it here: {name}"), || table(lab, exchange));
    }
    cases.run("an ext4 tree written by the kernel is whole here", || ext4(lab, &tree?, &said));
}

fn read_name(volume: &str) -> String {
    format!("the kernel reads what we wrote: {volume}")
}

/// Makes the volume and fills it through our server.
fn prepare(lab: &Lab, recipe: &crate::volume::Recipe) -> Result<Exchange> {
    let volume = recipe.make(lab)?;
    let server = volume.serve(lab, &[])?;
    let seed = u64::try_from(recipe.name.len())? * 31 + u64::from(recipe.name.as_bytes()[0]);
    let content = content::fill(server.socket(), seed)?;
    server.stop()?;
    Ok(Exchange { volume, content })
}

fn plan_line(job: &str, index: usize, volume: &Volume, lab: &Lab) -> String {
    let disk = char::from(b'a' + u8::try_from(index).expect("few disks"));
    let dir = format!("{}/", lab.dir().display());
    let stdin = volume.stdin.as_ref().map_or("-".into(), |path| path.display().to_string());
    let words = volume.theirs.join(" ");
    // The lab is the guest's working directory.
    format!("{job} {} ubd{disk} {stdin} {words}\n", volume.name).replace(&dir, "")
}

fn boot(lab: &Lab, plan: &str, images: &[&Path]) -> Result<String> {
    tools::need("dmsetup")?;
    lab.write("plan", plan)?;
    boot_with(lab, "exchange.sh", images)
}

/// Boots a guest with these images and sockets, runs this script of `tests/kernel` in it, and
/// returns its words.
pub(super) fn boot_with(lab: &Lab, script: &str, images: &[&Path]) -> Result<String> {
    tools::need("linux.uml")?;
    tools::need("modprobe")?;
    let kernel = tools::root().join("tests/kernel");
    fs::copy(kernel.join(script), lab.path(script))?;
    lab.write("kernel.noise", noise(99, 1 << 20))?;
    let mut boot = tools::tool("bash");
    boot.arg(kernel.join("boot.sh")).arg(lab.dir()).arg(script).args(images);
    let said = tools::read(&mut boot)?;
    if !said.contains("@ done") {
        bail!("the guest did not finish: {}", tools::tail(&said));
    }
    Ok(said)
}

/// The guest's result for one volume.
pub(super) fn verdict(said: &str, name: &str) -> Result<String> {
    let line = said.lines().filter_map(|line| line.strip_prefix(&format!("@ {name} ")));
    let mut sha = None;
    for words in line {
        match words.split_once(' ') {
            Some(("read", sum)) => sha = Some(sum.trim().to_owned()),
            Some(("failed", why)) => bail!("the kernel: {why}"),
            _ => bail!("the guest said: {words}"),
        }
    }
    sha.context("the guest reported no result")
}

fn kernel_reads(said: &str, exchange: &Exchange) -> Result<String> {
    let got = verdict(said, exchange.volume.name)?;
    let want = hex(&Sha256::digest(&exchange.content));
    if got != want {
        bail!("the kernel reads other bytes: sha256 {got} instead of {want}");
    }
    Ok(format!("{} MiB", exchange.content.len() >> 20))
}

fn overlay(content: &mut [u8]) {
    let written = noise(99, 1 << 20);
    content[KERNEL_WRITES_AT..][..written.len()].copy_from_slice(&written);
}

fn we_read(lab: &Lab, exchange: &Exchange) -> Result<String> {
    let server = exchange.volume.serve(lab, &["--read-only"])?;
    content::same(&content::read(server.socket())?, &exchange.content)?;
    server.stop()?;
    Ok(String::new())
}

/// The text of `dmsetup table --showkeys`, with the image instead of the guest's device.
fn table(lab: &Lab, exchange: &Exchange) -> Result<String> {
    let name = exchange.volume.name;
    let text = fs::read_to_string(lab.path(&format!("{name}.table")))
        .context("the guest left no table")?;
    let words: Vec<_> = text.split_whitespace().collect();
    let image = exchange.volume.image.display().to_string();
    let mut ours = String::new();
    for (index, word) in words.iter().enumerate() {
        // start length "crypt" cipher key iv_offset DEVICE offset ...
        let _ = write!(ours, "{} ", if index == 6 { &image } else { *word });
    }
    let file = lab.write(&format!("{name}.ours.table"), ours.trim_end().to_owned() + "\n")?;
    let socket = lab.path(&format!("{name}.table.sock"));
    let mut serve = lab.blockyard(&["serve", "--table"]);
    serve.arg(file).arg("--read-only").arg("--socket").arg(&socket);
    let server = lab.start(&format!("{name}.table.serve"), serve, Door::Unix(socket))?;
    content::same(&content::read(server.socket())?, &exchange.content)?;
    server.stop()?;
    Ok(String::new())
}

/// A volume for a file system by the guest, and the files to copy.
fn ext4_volume(lab: &Lab) -> Result<Volume> {
    let recipe = crate::volume::Recipe {
        name: "ours-ext4",
        maker: crate::volume::Maker::Blockyard,
        options: "",
    };
    make_tree(lab)?;
    recipe.make(lab)
}

/// Files that a guest copies.
pub(super) fn make_tree(lab: &Lab) -> Result<()> {
    let tree = lab.path("tree");
    fs::create_dir_all(&tree)?;
    for (index, len_bytes) in [0, 1, 511, 4096, 70_000, 3_000_000].into_iter().enumerate() {
        fs::write(tree.join(format!("file-{index}")), noise(index as u64, len_bytes))?;
    }
    Ok(())
}

fn ext4(lab: &Lab, volume: &Volume, said: &str) -> Result<String> {
    verdict(said, volume.name)?;
    let out = lab.path("ours-ext4.plain");
    let mut dump = volume.command(lab, "dump")?;
    tools::run(dump.arg("--force").arg("-o").arg(&out))?;
    has_tree(lab, &out)?;
    Ok("e2fsck finds nothing, every file is equal".into())
}

/// Whether an image has a sound file system with the files of [`make_tree`].
pub(super) fn has_tree(lab: &Lab, image: &Path) -> Result<()> {
    tools::run(tools::tool("e2fsck").arg("-fn").arg(image))?;
    for entry in fs::read_dir(lab.path("tree"))? {
        let entry = entry?;
        let inside = format!("cat /tree/{}", entry.file_name().to_string_lossy());
        let got = tools::run(tools::tool("debugfs").arg("-R").arg(inside).arg(image))?.stdout;
        content::same(&got, &fs::read(entry.path())?)
            .with_context(|| entry.file_name().to_string_lossy().into_owned())?;
    }
    Ok(())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
