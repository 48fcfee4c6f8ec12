//! One line of JSON, written by hand.

use std::fmt::{Display, Write};

/// A flat JSON object.
pub struct Line(String);

impl Line {
    pub fn new(mode: &str) -> Line {
        Line(String::from("{")).text("mode", mode)
    }

    /// A number or a truth value.
    pub fn num(mut self, name: &str, value: impl Display) -> Line {
        self.name(name);
        let _ = write!(self.0, "{value}");
        self
    }

    /// A string.
    pub fn text(mut self, name: &str, value: &str) -> Line {
        self.name(name);
        let _ = write!(self.0, "\"{}\"", escape(value));
        self
    }

    /// A list of strings.
    pub fn list(mut self, name: &str, values: &[String]) -> Line {
        self.name(name);
        let quoted: Vec<String> = values.iter().map(|v| format!("\"{}\"", escape(v))).collect();
        let _ = write!(self.0, "[{}]", quoted.join(","));
        self
    }

    pub fn end(self) -> String {
        self.0 + "}"
    }

    fn name(&mut self, name: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        let _ = write!(self.0, "\"{name}\":");
    }
}

/// The name of an error as C spells it where this program cares, else its text.
pub fn errno(e: &std::io::Error) -> String {
    match e.raw_os_error() {
        Some(104) => "ECONNRESET".into(),
        Some(32) => "EPIPE".into(),
        Some(103) => "ECONNABORTED".into(),
        Some(110) => "ETIMEDOUT".into(),
        Some(111) => "ECONNREFUSED".into(),
        Some(11) => "EAGAIN".into(),
        _ => e.to_string(),
    }
}

fn escape(s: &str) -> String {
    s.chars().map(|c| if c == '"' || c == '\\' || c.is_control() { '_' } else { c }).collect()
}
