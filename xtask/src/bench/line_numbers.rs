//! Lines of the source for addresses of a program, from `addr2line`.

use crate::tools;
use anyhow::{Result, ensure};
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

/// For each address its lines, `FILE:NUMBER`: the innermost function that the compiler inlined
/// there comes first.
pub(super) fn of(program: &Path, addresses: &[u64]) -> Result<Vec<String>> {
    let mut addr2line = tools::tool("addr2line");
    addr2line.arg("--addresses").arg("--inlines").arg("--exe").arg(program);
    let mut child = addr2line.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().expect("it is piped");
    let text: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output()?;
    writer.join().expect("it only writes")?;
    let text = tools::text(&output.stdout);
    let blocks: Vec<String> = text.split("0x").skip(1).map(str::to_owned).collect();
    ensure!(blocks.len() == addresses.len(), "addr2line knows {} of {addresses:?}", blocks.len());
    Ok(blocks)
}
