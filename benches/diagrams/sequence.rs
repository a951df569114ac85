//! The sequence diagrams of the guide and the design, as SVG: `docs/grant.svg`,
//! `docs/wait_and_wake.svg` and `docs/lost_lease.svg`.

use std::fmt::Write as _;

const WIDTH: usize = 700;
const ROW: usize = 34;
/// The height of the title and of the participants' boxes.
const HEAD: usize = 92;
/// The width of a character, on average, at the size of the labels.
const CHARACTER: usize = 7;

pub(crate) struct Diagram {
    pub(crate) file: &'static str,
    title: &'static str,
    participants: &'static [&'static str],
    rows: &'static [Row],
}

/// Participants are numbered from 0, from left to right.
enum Row {
    /// A message that arrives.
    Message(usize, usize, &'static str),
    /// A message that does not arrive.
    Lost(usize, usize, &'static str),
    /// An action of a participant, or its state.
    Note(usize, &'static str),
    /// The note that matters most.
    Important(usize, &'static str),
}

use Row::{Important, Lost, Message, Note};

const OF_A_WAITER: &[&str] = &[
    "waiting thread",
    "subscriber thread",
    "Redis",
    "holder elsewhere",
];

const WAIT_AND_WAKE: Diagram = Diagram {
    file: "wait_and_wake.svg",
    title: "A release wakes a waiter in another process",
    participants: OF_A_WAITER,
    rows: &[
        Message(0, 2, "acquire"),
        Message(2, 0, "refused: held for 8 s more"),
        Message(0, 1, "listen to this name"),
        Message(1, 2, "SUBSCRIBE lock_release:x"),
        Message(2, 1, "confirmed"),
        Message(0, 2, "acquire again"),
        Message(2, 0, "refused: no release was missed"),
        Note(0, "sleeps, sends nothing"),
        Message(3, 2, "release"),
        Message(2, 1, "message on lock_release:x"),
        Message(1, 0, "wake"),
        Message(0, 2, "acquire"),
        Message(2, 0, "granted, token 43"),
        Important(0, "lock() returns"),
    ],
};

const GRANT: Diagram = Diagram {
    file: "grant.svg",
    title: "A release grants the lock to a waiter in another process",
    participants: OF_A_WAITER,
    rows: &[
        Message(0, 2, "acquire"),
        Message(2, 0, "refused: held"),
        Message(0, 1, "listen"),
        Message(0, 2, "enter the queue"),
        Message(1, 2, "SUBSCRIBE"),
        Message(2, 0, "entered"),
        Message(2, 1, "confirmed"),
        Note(0, "sleeps"),
        Message(3, 2, "release"),
        Note(2, "the first in the queue is the holder"),
        Message(2, 1, "granted, token 43"),
        Message(1, 0, "wake"),
        Important(0, "lock() returns"),
    ],
};

const LOST_LEASE: Diagram = Diagram {
    file: "lost_lease.svg",
    title: "A holder is cut off, and learns of its loss before another client gets the lock",
    participants: &["holder A", "A's threads", "Redis", "client B", "database"],
    rows: &[
        Message(1, 2, "renew"),
        Message(2, 1, "renewed"),
        Note(1, "valid for the ttl less drift"),
        Lost(1, 2, "renew: the network is down"),
        Lost(1, 2, "renew again"),
        Note(1, "the local clock ends the lease"),
        Message(1, 0, "lost(): Expired"),
        Important(0, "is_held() is false"),
        Note(2, "the key expires a little later"),
        Message(3, 2, "acquire"),
        Message(2, 3, "token 43"),
        Message(3, 4, "write, token 43"),
        Message(0, 4, "a late write of A, token 42"),
        Important(4, "rejected: 42 < 43"),
    ],
};

pub(crate) const ALL: [Diagram; 3] = [GRANT, WAIT_AND_WAKE, LOST_LEASE];

impl Diagram {
    fn x(&self, participant: usize) -> usize {
        let column = WIDTH / self.participants.len();
        column / 2 + participant * column
    }

    /// Rustdoc pages include the result, so it has no blank line, which would end the HTML block.
    pub(crate) fn svg(&self) -> String {
        let height = HEAD + ROW * self.rows.len() + 16;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" role=\"img\" font-family=\"sans-serif\" font-size=\"13\">\n\
             <title>{0}</title>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"></rect>\n\
             <text x=\"16\" y=\"26\" font-size=\"16\" fill=\"#1f2937\">{0}</text>\n",
            escaped(self.title),
        );
        for (n, participant) in self.participants.iter().enumerate() {
            let x = self.x(n);
            vertical(&mut svg, x, height - 12);
            boxed(&mut svg, self, n, 62, participant, "#e5e7eb");
        }
        for (n, row) in self.rows.iter().enumerate() {
            let y = HEAD + ROW * n + ROW / 2;
            match *row {
                Message(from, to, label) => self.message(&mut svg, [from, to], y, label, false),
                Lost(from, to, label) => self.message(&mut svg, [from, to], y, label, true),
                Note(at, label) => boxed(&mut svg, self, at, y, label, "#f3f4f6"),
                Important(at, label) => boxed(&mut svg, self, at, y, label, "#cffafe"),
            }
        }
        svg + "</svg>\n"
    }

    /// Draws an arrow with its label above it.
    fn message(&self, svg: &mut String, ends: [usize; 2], y: usize, label: &str, is_lost: bool) {
        let [from, to] = ends.map(|end| self.x(end));
        let is_rightward = from < to;
        let end = match (is_lost, is_rightward) {
            (false, _) => to,
            (true, true) => to - 40,
            (true, false) => to + 40,
        };
        let (color, dashes) = if is_lost {
            ("#be123c", " stroke-dasharray=\"5 4\"")
        } else {
            ("#0e7490", "")
        };
        let y = y + 8;
        let back = if is_rightward { end - 8 } else { end + 8 };
        let head = if is_lost {
            format!(
                "M{0} {1} L{2} {3} M{0} {3} L{2} {1}",
                end - 5,
                y - 5,
                end + 5,
                y + 5
            )
        } else {
            format!("M{back} {} L{end} {y} L{back} {}", y - 4, y + 4)
        };
        let _ = writeln!(
            svg,
            "<path d=\"M{from} {y} L{end} {y}\" stroke=\"{color}\" stroke-width=\"1.5\" \
             fill=\"none\"{dashes}></path>\n\
             <path d=\"{head}\" stroke=\"{color}\" stroke-width=\"1.5\" fill=\"none\"></path>"
        );
        self.label(svg, (from + to) / 2, y - 7, label, color);
    }

    /// Draws a text on a white outline, so that it stays readable over lines.
    fn label(&self, svg: &mut String, middle: usize, y: usize, label: &str, color: &str) {
        let x = self.inside(middle, label);
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" fill=\"{color}\" stroke=\"#ffffff\" \
             stroke-width=\"4\" paint-order=\"stroke\">{}</text>",
            escaped(label)
        );
    }

    /// Returns the middle of a label that is moved so that it does not leave the picture.
    fn inside(&self, middle: usize, label: &str) -> usize {
        let half = label.chars().count() * CHARACTER / 2 + 14;
        middle.clamp(half, (WIDTH - half).max(half))
    }
}

fn vertical(svg: &mut String, x: usize, bottom: usize) {
    let _ = writeln!(
        svg,
        "<path d=\"M{x} 74 L{x} {bottom}\" stroke=\"#9ca3af\" fill=\"none\"></path>"
    );
}

fn boxed(svg: &mut String, diagram: &Diagram, at: usize, y: usize, label: &str, fill: &str) {
    let middle = diagram.inside(diagram.x(at), label);
    let width = label.chars().count() * CHARACTER + 16;
    let _ = writeln!(
        svg,
        "<rect x=\"{}\" y=\"{}\" width=\"{width}\" height=\"24\" rx=\"4\" fill=\"{fill}\" \
         stroke=\"#9ca3af\"></rect>\n\
         <text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\" fill=\"#1f2937\">{}</text>",
        middle - width / 2,
        y - 12,
        y + 5,
        escaped(label)
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
