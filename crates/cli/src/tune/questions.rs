//! Questions to the user about the workload.

use crate::failure::Failure;
use crate::terminal::Terminal;

/// Asks the user for the workload; returns it as options of fio.
pub(crate) fn ask(terminal: &Terminal, may_write: bool) -> Result<String, Failure> {
    let mut words = Vec::new();
    let order = choose(
        terminal,
        "Are requests spread over the volume?",
        &[
            ("random", "databases, virtual machines, file systems with many files"),
            ("sequential", "backups, copies, media"),
        ],
    )?;
    let mix = if may_write {
        choose(
            terminal,
            "Do they read or write?",
            &[
                ("read", "they read"),
                ("write", "writes only: the data on the volume is lost"),
                ("both", "70 % reads"),
            ],
        )?
    } else {
        0
    };
    let rw = [["randread", "read"], ["randwrite", "write"], ["randrw", "rw"]][mix][order];
    words.push(format!("rw={rw}"));
    if mix == 2 {
        words.push("rwmixread=70".into());
    }
    let sizes = [("4k", "4 KiB"), ("16k", "16 KiB"), ("64k", "64 KiB"), ("1m", "1 MiB")];
    let size = choose(terminal, "How long are they?", &sizes)?;
    words.push(format!("bs={}", sizes[size].0));
    let depths = [("1", "one after the other"), ("8", "some"), ("32", "many")];
    let depth = choose(terminal, "How many are in flight at a time?", &depths)?;
    words.push(format!("ioengine=libaio iodepth={}", depths[depth].0));
    Ok(words.join(" "))
}

/// Lets the user choose an answer; Enter is the first.
fn choose(terminal: &Terminal, question: &str, answers: &[(&str, &str)]) -> Result<usize, Failure> {
    let failed = |error| Failure::failed(format!("cannot ask at the terminal: {error}"));
    let mut text = format!("{question}\n");
    for (number, (name, about)) in (1..).zip(answers) {
        text += &format!("  {number}  {name}: {about}\n");
    }
    loop {
        terminal.say(&format!("{text}[1] ")).map_err(failed)?;
        let answer = terminal.line().map_err(failed)?;
        let answer = answer.trim();
        if answer.is_empty() {
            return Ok(0);
        }
        let by_number = answer.parse().ok().filter(|number| (1..=answers.len()).contains(number));
        let by_name = answers.iter().position(|(name, _)| *name == answer);
        if let Some(place) = by_number.map(|number: usize| number - 1).or(by_name) {
            return Ok(place);
        }
    }
}
