//! Words of cryptsetup's command line that Blockyard has under another name, or does not have.
//!
//! A user who types an action, such as `luksOpen`, is told our command with the same arguments. The
//! told command line was parsed before: it runs if it is pasted. docs/cli/habits.md has the table.

mod actions;
mod options;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};

use crate::args::definition;
use crate::failure::printable;
use actions::Action;

/// Options that are true here without being said: commands, letter, name.
const TRUE_ANYWAY: &[(&[&str], char, &str)] =
    &[(&["format", "key add", "key change"], 'y', "verify-passphrase")];

/// The definition, which accepts the options that are true anyway.
pub(crate) fn accepting(definition: Command) -> Command {
    TRUE_ANYWAY.iter().fold(definition, |definition, (commands, letter, name)| {
        commands.iter().fold(definition, |definition, command| {
            let option =
                || Arg::new(*name).short(*letter).long(*name).action(ArgAction::SetTrue).hide(true);
            match command.split_once(' ') {
                None => definition.mut_subcommand(command, |command| command.arg(option())),
                Some((group, below)) => definition.mut_subcommand(group, |group| {
                    group.mut_subcommand(below, |command| command.arg(option()))
                }),
            }
        })
    })
}

/// The sentence for an error of the parser, if the words are those of cryptsetup.
pub(crate) fn explained(error: &clap::Error, words: &[String]) -> Option<String> {
    match error.kind() {
        ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument => {
            asked_action(words).or_else(|| {
                let name = options::spelling(&context(error, ContextKind::InvalidArg)?).to_owned();
                options::answer(&name).map(|answer| format!("{name} is no option here: {answer}"))
            })
        }
        ErrorKind::InvalidValue => {
            let option = context(error, ContextKind::InvalidArg)?;
            let value = context(error, ContextKind::InvalidValue)?;
            let is_format = words.first().is_some_and(|word| word == "format");
            let is_type = is_format && options::spelling(&option) == "--type";
            options::answer_to_type(&value).filter(|_| is_type).map(ToOwned::to_owned)
        }
        _ => None,
    }
}

fn context(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    }
}

/// The answer to an action, with its arguments.
fn asked_action(words: &[String]) -> Option<String> {
    let Some((positionals, mut options)) = options::separated(words) else {
        return uncertain(words);
    };
    let (name, action, arguments) = Action::of(&positionals)?;
    if action.is_tcrypt() || options.iter().any(|option| options::is_tcrypt(option)) {
        options.iter_mut().for_each(options::name_keyfile);
    }
    let mut told = format!("{name} is a command of cryptsetup");
    let Some(answer) = line_for(action, arguments, &options) else {
        return Some(format!("{told}: {}", action.note));
    };
    told += &format!("; here it is `{}`", answer.line);
    if !answer.is_whole {
        told += ", with other arguments: -h shows them";
    }
    for option in &answer.lost {
        let why = options::answer(options::spelling(option));
        told += &format!(
            ", without {option}{}",
            why.map_or_else(String::new, |why| format!(" ({why})"))
        );
    }
    if !action.note.is_empty() {
        told += &format!("; {}", action.note);
    }
    Some(printable(&told))
}

/// The answer to words that cannot be told apart: only the name of the command.
fn uncertain(words: &[String]) -> Option<String> {
    let names: Vec<&str> = words.iter().map(String::as_str).collect();
    let (name, action, _) =
        names.iter().enumerate().find_map(|(at, _)| Action::of(&names[at..]))?;
    let told = format!("{name} is a command of cryptsetup");
    let Some(line) = action.lines.first() else {
        return Some(format!("{told}: {}", action.note));
    };
    let command: Vec<&str> =
        line.split_whitespace().take(actions::words_of_command(line)).collect();
    let command = command.join(" ");
    Some(format!("{told}; here it is `blockyard {command}`, with other arguments: -h shows them"))
}

/// Our command for an action.
struct Answer {
    /// The line with all of its arguments, or only the name of the command.
    line: String,
    is_whole: bool,
    /// Options of the user that it lacks.
    lost: Vec<String>,
}

/// Our command line, with all options. Without an option that changes more than messages and
/// waits, the line would do something else, perhaps to another key or place: then only the command
/// is named.
fn line_for(action: &Action, arguments: &[&str], options: &[Vec<&str>]) -> Option<Answer> {
    let definition = definition();
    let takes = |line: &[String]| {
        let words = std::iter::once("blockyard").chain(line.iter().map(String::as_str));
        definition.clone().try_get_matches_from(words).is_ok()
    };
    let with = |line: &[String], more: &[&Vec<&str>]| {
        let more = more.iter().flat_map(|option| option.iter()).map(|word| (*word).to_owned());
        line.iter().cloned().chain(more).collect::<Vec<_>>()
    };
    let first = action.lines.first()?;
    let command: Vec<String> = first
        .split_whitespace()
        .take(actions::words_of_command(first))
        .map(str::to_owned)
        .collect();
    let lines: Vec<_> =
        action.lines.iter().filter_map(|line| actions::filled(line, arguments)).collect();
    let all: Vec<_> = options.iter().collect();
    let whole = lines.iter().map(|line| with(line, &all)).find(|line| takes(line));
    if let Some(line) = whole {
        return Some(Answer { line: shown(&line), is_whole: true, lost: Vec::new() });
    }
    let Some(line) = lines.first() else {
        return Some(Answer { line: shown(&command), is_whole: false, lost: Vec::new() });
    };
    let (kept, lost): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|option| takes(&with(line, &[option])));
    let fitting = with(line, &kept);
    let is_harmless = |option: &&Vec<&str>| options::is_harmless(options::spelling(option[0]));
    let lost_words = lost.iter().map(|option| option.join(" ")).collect();
    if takes(&fitting) && lost.iter().all(is_harmless) {
        return Some(Answer { line: shown(&fitting), is_whole: true, lost: lost_words });
    }
    Some(Answer { line: shown(&command), is_whole: false, lost: lost_words })
}

/// The line as in a shell.
fn shown(line: &[String]) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,@%+".contains(c);
    let quoted = |word: &String| {
        if word.chars().all(is_plain) && !word.is_empty() {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    let words: Vec<_> = line.iter().map(quoted).collect();
    format!("blockyard {}", words.join(" "))
}

#[cfg(test)]
mod tests;
