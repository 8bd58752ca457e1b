//! NBD over TLS with clients and servers of other projects, with the certificates of `tls init`.

use super::content;
use crate::cases::Cases;
use crate::certificates::Pki;
use crate::lab::Lab;
use crate::process::until;
use crate::tools::{self, tool};
use crate::volume::{Maker, Recipe, Volume, noise};
use anyhow::{Result, anyhow, ensure};
use std::fs;
use std::time::Duration;

/// Time limit of a foreign server to start.
const LIMIT: Duration = Duration::from_secs(10);

/// A case with a volume that it serves, and the directory of certificates.
type Case = fn(&Lab, &Volume, &Pki) -> Result<String>;

const CASES: &[(&str, Case)] = &[
    ("TLS: nbdinfo and nbdcopy, with and without a client's certificate", libnbd),
    ("TLS: qemu-img as a client", qemu_img),
    ("TLS: nbdkit as a server", nbdkit),
    ("TLS: qemu-nbd as a server", qemu_nbd),
];

pub(crate) fn run(cases: &mut Cases, lab: &Lab) {
    if !cases.wants_some("TLS: ") {
        return;
    }
    let recipe = Recipe { name: "tls", maker: Maker::Blockyard, options: "" };
    let made = recipe.make(lab).and_then(|volume| Ok((volume, Pki::make(lab)?)));
    let (volume, pki) = match made {
        Ok(made) => made,
        Err(error) => return cases.verdict("TLS: a volume and certificates", Err(error)),
    };
    for (name, case) in CASES {
        cases.run(name, || case(lab, &volume, &pki));
    }
}

fn libnbd(lab: &Lab, volume: &Volume, pki: &Pki) -> Result<String> {
    let plain = volume.serve(lab, &[])?;
    let want = content::fill(plain.socket(), 21)?;
    plain.stop()?;
    for (words, certificates) in [(&[][..], &pki.bare), (&["--tls-verify-peer"][..], &pki.client)] {
        let words = [&["--tls-certificates", pki.server.as_str()], words].concat();
        let server = volume.serve(lab, &words)?;
        let uri = Pki::uri(server.socket(), certificates, "");
        let size: usize = tools::read(tool("nbdinfo").args(["--size", &uri]))?.trim().parse()?;
        ensure!(size == want.len(), "size {size}");
        let out = lab.path("tls.out");
        let _ = fs::remove_file(&out);
        tools::run(tool("nbdcopy").arg(&uri).arg(&out))?;
        content::same(&fs::read(&out)?, &want)?;
        tools::run(tool("nbdcopy").arg(&out).arg(&uri))?;
        let clear = format!("nbd+unix:///?socket={}", server.socket().display());
        let refused = tools::output(tool("nbdinfo").arg(clear))?;
        ensure!(!refused.status.success(), "a client without TLS was served");
        server.stop()?;
    }
    let words = ["--tls-certificates", pki.server.as_str(), "--tls-verify-peer"];
    let server = volume.serve(lab, &words)?;
    let refused = tools::output(tool("nbdinfo").arg(Pki::uri(server.socket(), &pki.bare, "")))?;
    ensure!(!refused.status.success(), "a client without a certificate was served");
    server.stop()?;
    Ok(String::new())
}

fn qemu_img(lab: &Lab, volume: &Volume, pki: &Pki) -> Result<String> {
    let words = ["--tls-certificates", pki.server.as_str(), "--tls-verify-peer"];
    let server = volume.serve(lab, &words)?;
    let out = lab.path("tls.qemu");
    let _ = fs::remove_file(&out);
    let credentials = format!("tls-creds-x509,id=tls,dir={},endpoint=client", pki.client);
    let image = format!(
        "driver=nbd,server.type=unix,server.path={},tls-creds=tls,tls-hostname=localhost",
        server.socket().display()
    );
    let mut convert = tool("qemu-img");
    convert.args(["convert", "--object", &credentials, "--image-opts", &image, "-O", "raw"]);
    tools::run(convert.arg(&out))?;
    server.stop()?;
    let plain = volume.serve(lab, &[])?;
    content::same(&fs::read(&out)?, &content::read(plain.socket())?)?;
    plain.stop()?;
    Ok(String::new())
}

/// The plaintext of a raw disk behind another server with TLS, by our client.
fn dumped(lab: &Lab, uri: &str, want: &[u8]) -> Result<()> {
    let table = format!("0 {} linear {uri} 0\n", want.len() / 512);
    let table = lab.write("tls.table", table.as_bytes())?;
    let out = lab.path("tls.dump");
    let _ = fs::remove_file(&out);
    tools::run(lab.blockyard(&["dump", "--table"]).arg(table).arg("-o").arg(&out))?;
    content::same(&fs::read(&out)?, want)
}

fn nbdkit(lab: &Lab, _volume: &Volume, pki: &Pki) -> Result<String> {
    let want = noise(22, 8 << 20);
    let disk = lab.write("tls.disk", &want)?;
    let socket = lab.path("tls.nbdkit");
    let certificates = format!("--tls-certificates={}", pki.server);
    let mut nbdkit = tools::daemon("nbdkit");
    nbdkit.args(["-f", "--tls=require", "--tls-verify-peer", &certificates, "-U"]).arg(&socket);
    served_by(lab, nbdkit.arg("file").arg(&disk), &socket, pki, &want)
}

fn qemu_nbd(lab: &Lab, _volume: &Volume, pki: &Pki) -> Result<String> {
    let want = noise(23, 8 << 20);
    let disk = lab.write("tls.disk", &want)?;
    let socket = lab.path("tls.qemu-nbd");
    let object = pki.qemu_server(true);
    let mut qemu = tools::daemon("qemu-nbd");
    qemu.args(["--persistent", "--format=raw", "--object", &object, "--tls-creds", "tls", "-k"]);
    served_by(lab, qemu.arg(&socket).arg(&disk), &socket, pki, &want)
}

fn served_by(
    lab: &Lab,
    server: &mut std::process::Command,
    socket: &std::path::Path,
    pki: &Pki,
    want: &[u8],
) -> Result<String> {
    let _ = fs::remove_file(socket);
    let mut server = server.spawn()?;
    let outcome = if until(LIMIT, || socket.exists()) {
        // The client runs as another user.
        lab.give(socket).and_then(|()| dumped(lab, &Pki::uri(socket, &pki.client, ""), want))
    } else {
        Err(anyhow!("it does not listen"))
    };
    server.kill()?;
    server.wait()?;
    outcome.map(|()| String::new())
}
