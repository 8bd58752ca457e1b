//! The line of an event.

use std::fmt::{self, Write};
use std::time::{Duration, SystemTime};

use super::{Event, Format};

/// Value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// A number.
    Number(u64),
    /// A text, perhaps of a client.
    Text(&'a str),
    /// Some texts.
    List(&'a [String]),
}

/// The line of an event, with its newline.
pub(super) fn of(
    event: &Event<'_>,
    text: fmt::Arguments<'_>,
    form: Format,
    at: SystemTime,
) -> String {
    let mut line = String::new();
    let level = event.kind.level();
    match form {
        Format::Json => json(&mut line, event, &text.to_string(), at),
        Format::Text => write!(Printable(&mut line), "blockyard: {text}"),
        // The journal knows the program.
        Format::Journal => {
            write!(line, "<{}>", level as u8).and_then(|()| write!(Printable(&mut line), "{text}"))
        }
    }
    .expect("writing to a string succeeds");
    line.push('\n');
    line
}

/// A line without a level.
pub(super) fn plain(text: &str) -> String {
    let mut line = String::with_capacity(text.len() + 1);
    Printable(&mut line).write_str(text).expect("writing to a string succeeds");
    line.push('\n');
    line
}

fn json(line: &mut String, event: &Event<'_>, text: &str, at: SystemTime) -> fmt::Result {
    write!(line, "{{\"time\":\"{}\",\"level\":\"{}\"", Rfc3339(at), event.kind.level().name())?;
    write!(line, ",\"event\":\"{}\"", event.kind.name())?;
    for (name, value) in [("export", event.export), ("peer", event.peer)] {
        if let Some(value) = value {
            write!(line, ",\"{name}\":{}", Quoted(value))?;
        }
    }
    for (name, value) in event.fields {
        write!(line, ",\"{name}\":")?;
        match value {
            Value::Number(number) => write!(line, "{number}")?,
            Value::Text(text) => write!(line, "{}", Quoted(text))?,
            Value::List(texts) => {
                line.push('[');
                for (place, text) in texts.iter().enumerate() {
                    let comma = if place == 0 { "" } else { "," };
                    write!(line, "{comma}{}", Quoted(text))?;
                }
                line.push(']');
            }
        }
    }
    write!(line, ",\"message\":{}}}", Quoted(text))
}

/// Escapes what could control a terminal, change the direction of text, or begin another line.
struct Printable<'a>(&'a mut String);

fn is_odd(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl Write for Printable<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if is_odd(c) {
                self.0.extend(c.escape_default());
            } else {
                self.0.push(c);
            }
        }
        Ok(())
    }
}

/// A string of JSON, with control characters escaped.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if is_odd(c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(f, "\\u{unit:04x}")?;
                    }
                }
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// A time in UTC with milliseconds.
struct Rfc3339(SystemTime);

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since: Duration = self.0.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let seconds = since.as_secs();
        let [hour, minute, second] = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60];
        let (year, month, day) = date(seconds / 86_400);
        let ms = since.subsec_millis();
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
    }
}

/// Year, month and day of a day after 1970-01-01, in the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    // Years begin in March here, so that a leap day is the last of its year.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    fn line(form: Format) -> String {
        let fields = [("bytes_read", Value::Number(7)), ("names", Value::List(&[]))];
        let event = Event::new(Kind::ClientDisconnected).export("a\"b\n\u{1b}").peer("pid 3");
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(951_782_400_042);
        of(&event.fields(&fields), format_args!("gone:\n{}", "\u{202e}x"), form, at)
    }

    #[test]
    fn line_of_each_form_is_one_line_without_control_characters() {
        assert_eq!(line(Format::Text), "blockyard: gone:\\n\\u{202e}x\n");
        assert_eq!(line(Format::Journal), "<6>gone:\\n\\u{202e}x\n");
        assert_eq!(
            line(Format::Json),
            "{\"time\":\"2000-02-29T00:00:00.042Z\",\"level\":\"info\",\
             \"event\":\"client-disconnected\",\"export\":\"a\\\"b\\u000a\\u001b\",\
             \"peer\":\"pid 3\",\"bytes_read\":7,\"names\":[],\
             \"message\":\"gone:\\u000a\\u202ex\"}\n"
        );
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(10_957), (2000, 1, 1));
        assert_eq!(date(11_016), (2000, 2, 29));
        assert_eq!(date(20_782), (2026, 11, 25));
        assert_eq!(date(47_540), (2100, 2, 28));
        assert_eq!(date(47_541), (2100, 3, 1));
    }
}
