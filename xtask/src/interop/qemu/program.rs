//! QEMU, a kernel for its guests and the archive that they boot from. Debian's packages are
//! unpacked into cargo's target directory once; nothing is installed.

use crate::lab::{self, Lab};
use crate::tools;
use crate::volume::noise;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The files of a guest.
#[derive(Clone)]
pub(super) struct Program {
    root: PathBuf,
    kernel: PathBuf,
    archive: PathBuf,
    memory: &'static str,
    has_two_nodes: bool,
}

/// Unpacks QEMU if it is not there yet, and writes the archive with the scripts and files of this
/// lab.
pub(super) fn get(lab: &Lab) -> Result<Program> {
    let scripts = tools::root().join("tests/qemu");
    let dir = lab::target().join("qemu");
    let root = dir.join("root");
    let get = scripts.join("get.sh");
    // An older script got fewer packages.
    if fs::read(root.join("get.sh")).ok() != Some(fs::read(&get)?) {
        tools::run(tools::tool("bash").arg(get).arg(&dir))?;
    }
    let kernel = kernel(&root)?;
    let work = lab.path("qemu");
    fs::create_dir_all(&work)?;
    fs::copy(scripts.join("load.sh"), work.join("load.sh"))?;
    fs::copy(tools::root().join("tests/kernel/disk.sh"), work.join("disk.sh"))?;
    fs::write(work.join("kernel.noise"), noise(99, 1 << 20))?;
    super::make_tree(lab)?;
    tools::run(tools::tool("cp").arg("-r").arg(lab.path("tree")).arg(&work))?;
    let archive = lab.path("qemu.cpio");
    pack(&root, &work, &archive)?;
    Ok(Program { root, kernel, archive, memory: "256M", has_two_nodes: false })
}

/// Writes an archive for guests.
fn pack(root: &Path, work: &Path, archive: &Path) -> Result<()> {
    let script = tools::root().join("tests/qemu/initramfs.sh");
    tools::run(tools::tool("bash").arg(script).arg(root).arg(work).arg(archive)).map(drop)
}

/// The kernel of the unpacked packages, or the machine's if its package was installed already.
fn kernel(root: &Path) -> Result<PathBuf> {
    for boot in [root.join("boot"), "/boot".into()] {
        for entry in fs::read_dir(boot).into_iter().flatten() {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("vmlinuz-") && name.ends_with("-cloud-amd64") {
                return Ok(entry.path());
            }
        }
    }
    bail!("no kernel in {}", root.display())
}

impl Program {
    /// Guests that run our binary by these scripts.
    pub(super) fn with_blockyard(&self, lab: &Lab, scripts: &[&str]) -> Result<Program> {
        let work = lab.path("qemu-blockyard");
        let _ = fs::remove_dir_all(&work);
        tools::run(tools::tool("cp").arg("-r").arg(lab.path("qemu")).arg(&work))?;
        for script in scripts {
            fs::copy(tools::root().join("tests/qemu").join(script), work.join(script))?;
        }
        fs::copy(lab.pass(), work.join("pass"))?;
        fs::copy(lab.binary(), work.join("blockyard"))?;
        let archive = lab.path("qemu-blockyard.cpio");
        pack(&self.root, &work, &archive)?;
        // The archive is in memory twice while it is unpacked.
        Ok(Program { archive, memory: "768M", ..self.clone() })
    }

    /// Guests with two NUMA nodes, of two CPUs and 512 MiB each.
    pub(super) fn with_two_nodes(&self) -> Program {
        Program { has_two_nodes: true, ..self.clone() }
    }

    /// QEMU's words for CPUs and memory.
    fn machine(&self) -> String {
        if self.has_two_nodes {
            let memory = |id| format!("-object memory-backend-ram,id=memory{id},size=512M");
            let node = |id, cpus| format!("-numa node,nodeid={id},cpus={cpus},memdev=memory{id}");
            let nodes = [memory(0), memory(1), node(0, "0-1"), node(1, "2-3")].join(" ");
            return format!("-machine q35 -smp 4,sockets=2,cores=2 -m 1024M {nodes}");
        }
        let memory = self.memory;
        format!(
            "-machine q35,memory-backend=memory -smp 2 -m {memory} \
             -object memory-backend-memfd,id=memory,size={memory},share=on"
        )
    }

    /// QEMU with a kernel that runs this script, without a disk.
    pub(super) fn command(&self, script: &str) -> Result<Command> {
        let unpacked = self.root.join("usr/bin/qemu-system-x86_64");
        let program = if unpacked.exists() { unpacked } else { "qemu-system-x86_64".into() };
        let mut qemu = tools::daemon(program.to_str().context("the path of QEMU is no text")?);
        qemu.env("LD_LIBRARY_PATH", self.root.join("usr/lib/x86_64-linux-gnu"));
        for folder in ["qemu", "seabios"] {
            qemu.arg("-L").arg(self.root.join("usr/share").join(folder));
        }
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        qemu.args(["-accel", "tcg"]).args(self.machine().split(' '));
        qemu.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.archive);
        // Pages that the guest clears before the disk fills them would hide a gap in the log.
        let words = "console=ttyS0 quiet loglevel=4 panic=-1 init_on_alloc=0";
        qemu.arg("-append").arg(format!("{words} guest_script={script}"));
        Ok(qemu)
    }
}
