//! Examples of command lines, for `--help` and the man pages.
//!
//! A paragraph of the text begins with its command. A line that is indented by two is a request,
//! and below it are its commands.

const EXAMPLES: &str = include_str!("examples.txt");

/// Examples of the command with this name below `blockyard`, as text.
pub(super) fn of(name: &str) -> Option<&'static str> {
    let wanted = super::joined("blockyard", name);
    EXAMPLES.split("\n\n").find_map(|paragraph| {
        let (command, examples) = paragraph.split_once('\n')?;
        (command == wanted.trim_end()).then_some(examples)
    })
}

#[cfg(test)]
mod tests {
    use super::EXAMPLES;
    use crate::args::definition;

    /// The commands of `blockyard` in a line, as words: without pipes and redirections.
    fn commands(line: &str) -> Vec<Vec<String>> {
        let mut commands = vec![vec![]];
        let mut is_quoted = false;
        let mut word = String::new();
        for c in line.chars().chain([' ']) {
            match c {
                '\'' => is_quoted = !is_quoted,
                ' ' | '|' | '&' | '(' | ')' if !is_quoted => {
                    if !word.is_empty() && !word.starts_with('>') {
                        commands.last_mut().unwrap().push(std::mem::take(&mut word));
                    }
                    word.clear();
                    if c != ' ' {
                        commands.push(vec![]);
                    }
                }
                c => word.push(c),
            }
        }
        commands.retain(|words| words.first().is_some_and(|word| word == "blockyard"));
        commands
    }

    #[test]
    fn every_command_line_is_accepted() {
        let mut count = 0;
        for line in EXAMPLES.lines().filter_map(|line| line.strip_prefix("    ")) {
            assert!(line.len() <= 76, "clap would break {line}");
            for words in commands(line) {
                let lab = ["lab", "tune", "report"].contains(&words[1].as_str());
                if lab && cfg!(not(feature = "lab")) || words.contains(&"--lab".to_owned()) {
                    continue;
                }
                let parsed = definition().try_get_matches_from(&words);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                count += 1;
            }
        }
        assert!(count > 80, "{count} lines");
    }

    #[test]
    fn paragraphs_are_those_of_commands() {
        for paragraph in EXAMPLES.split("\n\n") {
            let name = paragraph.lines().next().unwrap();
            let mut words = name.split(' ');
            assert_eq!(words.next(), Some("blockyard"));
            let definition = definition();
            let found = words.try_fold(&definition, |at, word| at.find_subcommand(word));
            assert!(found.is_some() || cfg!(not(feature = "lab")), "{name}");
        }
    }
}
