//! QEMU's monitor protocol: a line of JSON for a command, a line for its answer, events between.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A monitor that accepts commands.
pub(super) struct Qmp {
    lines: BufReader<UnixStream>,
}

impl Qmp {
    pub(super) fn connect(socket: &Path) -> Result<Qmp> {
        let stream = UnixStream::connect(socket).context("QEMU's monitor")?;
        let mut qmp = Qmp { lines: BufReader::new(stream) };
        qmp.line()?;
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    pub(super) fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let words = json!({"execute": command, "arguments": arguments});
        writeln!(self.lines.get_mut(), "{words}")?;
        loop {
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                bail!("{command}: {}", error["desc"]);
            }
            if answer.get("return").is_some() {
                return Ok(answer["return"].take());
            }
        }
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("QEMU's monitor said {line:?}"))
    }
}
