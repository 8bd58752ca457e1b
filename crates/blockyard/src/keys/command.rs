//! A passphrase from a command: `pass show disk`, `gpg -d key.gpg`.
//!
//! The command is split into words as a shell would, with quotes and backslashes, and no shell runs
//! it: no variables, no patterns, no pipes. `sh -c '…'` is a command too.

use std::env;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use blockyard_crypt::secret::SecretBytes;
use blockyard_host::broker::Broker;
use blockyard_host::process::lock_secrets;

use super::KeyError;
use super::process::{self, is_startable, output_of_words};

/// Time in which a command must end. A person may have to touch a device or type a PIN meanwhile.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// A command whose standard output is a passphrase. One newline at its end is removed.
///
/// ```
/// use blockyard::keys::KeyCommand;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let command = KeyCommand::parse("echo 'open sesame'")?;
/// assert_eq!(command.read()?.as_slice(), b"open sesame");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyCommand {
    /// The program, and its arguments.
    words: Vec<String>,
    time_limit: Duration,
}

impl KeyCommand {
    /// A command from its text.
    ///
    /// # Errors
    /// [`KeyError::Command`] if the text has no word, or a quote or backslash without its end.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let words = words_of(text).map_err(KeyError::Command)?;
        if words.first().is_none_or(String::is_empty) {
            return Err(KeyError::Command("it names no program"));
        }
        Ok(Self { words, time_limit: TIME_LIMIT })
    }

    /// Lets a process outside of the sandbox start these commands after the sandbox has begun, and
    /// no others. Call it before the broker is sealed, and once in a process.
    ///
    /// # Errors
    /// A command is too long, or the broker has ended.
    pub fn start_outside<'a>(
        broker: &Arc<Broker>,
        commands: impl IntoIterator<Item = &'a Self>,
    ) -> io::Result<()> {
        let words = commands.into_iter().map(|command| command.words.clone()).collect();
        process::start_outside(broker, words)
    }

    /// Whether the sandbox of this process, if it has one, permits the command.
    #[must_use]
    pub fn is_permitted(&self) -> bool {
        is_startable(&self.words)
    }

    /// The files that the command consists of, as far as its words show them: the program, which is
    /// searched in `PATH`, and each word that is the path of a file, or could be one later.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let (program, arguments) = self.words.split_first().expect("checked: there is a program");
        let mut files = programs(program);
        let arguments = arguments.iter().map(PathBuf::from);
        files.extend(arguments.filter(|path| path.is_absolute() || path.exists()));
        files
    }

    /// Runs the command, and returns its output without the newline at its end. Its standard input
    /// is empty, and its standard error is that of this process. The command must end within 120
    /// seconds.
    ///
    /// # Errors
    /// The command cannot be started, fails, prints nothing or more than 8 MiB, or does not end.
    /// No error contains output of the command or its arguments.
    pub fn read(&self) -> Result<SecretBytes, KeyError> {
        lock_secrets();
        let place = || format!("command {}", self.words[0]);
        let output = output_of_words(&self.words, self.time_limit)
            .map_err(|source| KeyError::Failed { place: place(), problem: source.to_string() })?;
        match output.as_slice() {
            [] => Err(KeyError::Nothing { place: place() }),
            [passphrase @ .., b'\n'] => Ok(SecretBytes::copy_of(passphrase)),
            _ => Ok(output),
        }
    }
}

/// The path of a program. A program that is searched is the first one of these paths that can be
/// executed, so a new file at an earlier one, or a new mode of it, would take its place.
fn programs(program: &str) -> Vec<PathBuf> {
    if program.contains('/') {
        return vec![program.into()];
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    let mut searched: Vec<PathBuf> = Vec::new();
    for folder in env::split_paths(&folders) {
        searched.push(folder.join(program));
        if searched.last().is_some_and(|path| is_executable(path)) {
            break;
        }
    }
    searched
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Splits a text into words. Single quotes keep every character; a backslash keeps the next one,
/// within double quotes only `"` and `\`.
fn words_of(text: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (Some('"'), '\\') if matches!(characters.peek(), Some('"' | '\\')) => {
                word.get_or_insert_default().extend(characters.next());
            }
            (None, '\\') => {
                let kept = characters.next().ok_or("it ends with a backslash")?;
                word.get_or_insert_default().push(kept);
            }
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, space) if space.is_ascii_whitespace() => words.extend(word.take()),
            (_, other) => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    if quote.is_some() { Err("a quote has no end") } else { Ok(words) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<u8>, KeyError> {
        KeyCommand::parse(text)?.read().map(|secret| secret.as_slice().to_vec())
    }

    #[test]
    fn command_is_split_at_spaces_outside_of_quotes() {
        let words = |text| words_of(text).unwrap();
        assert_eq!(words(" pass  show\tdisk\n"), ["pass", "show", "disk"]);
        assert_eq!(
            words(r#"sh -c 'a "b" | c\d' "" "e \"f\" \g" h\ i"#),
            ["sh", "-c", r#"a "b" | c\d"#, "", r#"e "f" \g"#, "h i"]
        );
        assert_eq!(words("a'b'\"c\"d"), ["abcd"]);
        assert_eq!(words("$HOME * ~"), ["$HOME", "*", "~"]);
        for text in ["a 'b", "a \"b", "a \\"] {
            assert!(words_of(text).is_err(), "{text}");
        }
        for text in ["", "  ", "''"] {
            assert!(matches!(KeyCommand::parse(text), Err(KeyError::Command(_))), "{text:?}");
        }
    }

    #[test]
    fn output_is_the_passphrase_without_one_newline_at_its_end() {
        assert_eq!(read(r"printf 'a b\n'").unwrap(), b"a b");
        assert_eq!(read(r"printf 'a\nb\n\n'").unwrap(), b"a\nb\n");
        assert_eq!(read(r"printf 'a\r\n'").unwrap(), b"a\r");
        assert_eq!(read("printf x").unwrap(), b"x");
        assert_eq!(read("echo").unwrap(), b"");
        assert!(matches!(read("true"), Err(KeyError::Nothing { .. })));
    }

    #[test]
    fn failed_command_is_named_without_its_arguments_and_its_output() {
        let failed = read("sh -c 'echo hunter2; exit 7'").unwrap_err().to_string();
        assert_eq!(failed, "cannot get a passphrase from command sh: it ended with exit code 7");
        let missing = read("/no/such/program hunter2").unwrap_err().to_string();
        assert!(missing.contains("/no/such/program") && !missing.contains("hunter2"), "{missing}");
        let long = read("cat /dev/zero").unwrap_err().to_string();
        assert!(long.contains("command cat: its output is longer than a key of 8 MiB"), "{long}");
    }

    #[test]
    fn command_that_does_not_end_is_given_up() {
        let mut command = KeyCommand::parse("sleep 1000").unwrap();
        command.time_limit = Duration::from_millis(50);
        let failed = command.read().unwrap_err().to_string();
        assert!(failed.contains("did not end within 0.05 seconds"), "{failed}");
    }
}
