//! The image for Podman, Docker and Kubernetes: the program and the libraries that it needs, and no
//! more, as an archive of the OCI image layout.

use super::{Release, SUMMARY};
use crate::tools::{self, tool};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) fn make(release: &Release) -> Result<PathBuf> {
    let work = release.folder.join("oci");
    let blobs = work.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let layer = work.join("layer.tar");
    let root = root(release)?;
    archive(&root, &layer, release.time_s)?;
    fs::remove_dir_all(&root)?;
    let content = sum(&layer)?;
    tools::run(tool("gzip").args(["-9", "-n"]).arg(&layer))?;
    let packed = work.join("layer.tar.gz");
    let layer = blob(&blobs, &fs::read(&packed)?, "layer.v1.tar+gzip")?;
    fs::remove_file(&packed)?;
    let created = date(release.time_s)?;
    let config = json!({
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/blockyard"],
            "Cmd": ["--help"],
            "User": "65534:65534",
            "WorkingDir": "/data",
            "Labels": {
                "org.opencontainers.image.title": "blockyard",
                "org.opencontainers.image.description": SUMMARY,
                "org.opencontainers.image.version": release.version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{content}")] },
    });
    let config = blob(&blobs, config.to_string().as_bytes(), "config.v1+json")?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [layer],
    });
    let mut manifest = blob(&blobs, manifest.to_string().as_bytes(), "manifest.v1+json")?;
    // Podman names the loaded image so.
    let name = format!("blockyard:{}", release.version);
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    fs::write(work.join("index.json"), index.to_string())?;
    fs::write(work.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    let file = release.folder.join(format!("blockyard-{}-oci.tar", release.version));
    archive(&work, &file, release.time_s)?;
    fs::remove_dir_all(&work)?;
    Ok(file)
}

/// The root of a container.
fn root(release: &Release) -> Result<PathBuf> {
    let root = release.folder.join("oci-root");
    let place = |path: &Path| -> Result<()> {
        let to = root.join(path.strip_prefix("/")?);
        fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        fs::copy(path, to).with_context(|| path.display().to_string()).map(drop)
    };
    for library in libraries(&release.program)? {
        place(&library)?;
    }
    for folder in ["usr/bin", "data", "etc", "run", "tmp"] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::copy(&release.program, root.join("usr/bin/blockyard"))?;
    fs::write(root.join("etc/passwd"), "nobody:x:65534:65534:nobody:/data:/sbin/nologin\n")?;
    super::tree::set_times(&root, release.time_s)?;
    Ok(root)
}

/// The loader and the libraries, at the places where the loader looks for them.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let said = tools::read(Command::new("ldd").arg(program))?;
    let paths = said.lines().filter_map(|line| {
        line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from)
    });
    Ok(paths.collect())
}

/// Packs a folder: sorted, owned by root, with one time.
fn archive(folder: &Path, file: &Path, time_s: u64) -> Result<()> {
    let mut tar = tool("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
    tar.arg(format!("--mtime=@{time_s}")).arg("-C").arg(folder).arg("-cf").arg(file);
    if file.starts_with(folder) {
        tar.arg(format!("--exclude={}", file.display()));
    }
    tools::run(tar.arg(".")).map(drop)
}

/// Stores a blob; returns its descriptor.
fn blob(blobs: &Path, bytes: &[u8], kind: &str) -> Result<Value> {
    let new = blobs.join("new");
    fs::write(&new, bytes)?;
    let sum = sum(&new)?;
    fs::rename(&new, blobs.join(&sum))?;
    Ok(json!({
        "mediaType": format!("application/vnd.oci.image.{kind}"),
        "digest": format!("sha256:{sum}"),
        "size": bytes.len(),
    }))
}

fn sum(file: &Path) -> Result<String> {
    let said = tools::read(tool("sha256sum").arg(file))?;
    Ok(said.split_whitespace().next().context("sha256sum says nothing")?.to_owned())
}

fn date(time_s: u64) -> Result<String> {
    let mut date = tool("date");
    let said = tools::read(date.args(["-u", "-d", &format!("@{time_s}"), "+%Y-%m-%dT%H:%M:%SZ"]))?;
    Ok(said.trim().to_owned())
}
