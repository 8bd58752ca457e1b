//! The version, commit and features of this program.

use std::fmt::Write;
use std::sync::LazyLock;

use blockyard::status::Build;

/// In one line.
pub(crate) const SHORT: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("BLOCKYARD_COMMIT"), ")");

/// With a line for each feature.
pub(crate) fn long() -> &'static str {
    static LONG: LazyLock<String> = LazyLock::new(|| {
        let mut text = SHORT.to_owned();
        for feature in &build().features {
            write!(text, "\n  {feature:<12}{}", meaning(feature))
                .expect("writing to a string succeeds");
        }
        text
    });
    &LONG
}

/// For the status of a server, and its metrics.
pub(crate) fn build() -> Build {
    let mut build = Build::of_library();
    build.version = env!("CARGO_PKG_VERSION").to_owned();
    build.commit = env!("BLOCKYARD_COMMIT").to_owned();
    if cfg!(feature = "lab") {
        build.features.push("lab".to_owned());
    }
    build.features.sort();
    build
}

fn meaning(feature: &str) -> &'static str {
    match feature {
        "canaries" => "planted faults, for tests only",
        "fuse" => "mounts, without libfuse",
        "io_uring" => "disks and O_DIRECT files, if the kernel permits it",
        "lab" => "the commands lab, tune and report",
        "landlock" => "the sandbox's limits of files and TCP, if the kernel has them",
        "nbd" => "servers and clients of network block devices",
        "rbd" => "images of Ceph, by the system's librbd, loaded when one is opened",
        "seccomp" => "the sandbox's limits of system calls",
        "tls" => "NBD over TLS, by rustls",
        "ublk" => "disks of this machine, if the kernel has its driver",
        "vhost-user" => "disks of virtual machines",
        _ => "",
    }
}
