//! What a report says, before it is HTML or Markdown: one content for both.

/// A report.
#[derive(Debug, Default)]
pub struct Document {
    /// Its name.
    pub title: String,
    /// One after the other.
    pub blocks: Vec<Block>,
}

/// A piece of a report.
#[derive(Debug)]
pub enum Block {
    /// A chapter begins; the page links to it.
    Chapter {
        /// For links.
        id: String,
        /// Its name.
        title: String,
    },
    /// A part of a chapter begins.
    Section(String),
    /// Sentences.
    Paragraph(String),
    /// Sentences that a reader must not overlook.
    Warning(String),
    /// Sentences in a row.
    List(Vec<String>),
    /// A table.
    Grid(Grid),
    /// Plots, side by side where there is room, with what their colours mean.
    Plots {
        /// Colours and names, once for all of them.
        legend: Vec<(Colour, String)>,
        /// The plots.
        plots: Vec<Plot>,
    },
    /// What a reader opens: a summary and what is behind it.
    Fold {
        /// For links.
        id: String,
        /// Always seen.
        summary: String,
        /// Beside the summary: how it went.
        tag: Option<(Mark, String)>,
        /// Behind it.
        blocks: Vec<Block>,
    },
}

/// A colour of the page's style sheet, which knows a light and a dark form of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Colour(pub u8);

/// A plot.
#[derive(Debug)]
pub struct Plot {
    /// Above it, and what a reader who cannot see it hears.
    pub title: String,
    /// An `svg` element without a size of its own.
    pub svg: String,
}

/// What a row or a cell is about, beside its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// TandemFS loses.
    Loss,
    /// TandemFS wins.
    Win,
    /// Nothing is decided.
    Open,
    /// TandemFS.
    Ours,
}

impl Mark {
    /// Its class on the page.
    pub fn class(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Win => "win",
            Self::Open => "open",
            Self::Ours => "ours",
        }
    }
}

/// A cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// What it says.
    pub text: String,
    /// What that means.
    pub mark: Option<Mark>,
    /// The [`Block::Chapter`] or [`Block::Fold`] that has more of it.
    pub link: Option<String>,
}

impl Cell {
    /// With a meaning.
    pub fn marked(text: impl Into<String>, mark: Mark) -> Self {
        Self { text: text.into(), mark: Some(mark), link: None }
    }

    /// With a way to more.
    pub fn linked(text: impl Into<String>, link: impl Into<String>) -> Self {
        Self { text: text.into(), mark: None, link: Some(link.into()) }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), mark: None, link: None }
    }
}

/// A table.
#[derive(Debug)]
pub struct Grid {
    /// Above it.
    pub caption: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// Columns of text; the others are figures.
    pub texts: &'static [usize],
    /// A meaning of the whole row, and its cells.
    pub rows: Vec<(Option<Mark>, Vec<Cell>)>,
}

impl Grid {
    /// An empty one.
    pub fn new(caption: impl Into<String>, texts: &'static [usize], head: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { caption: caption.into(), head: head.into_iter().map(Into::into).collect(), texts, rows: Vec::new() }
    }

    /// Adds a row of as many cells as the head has.
    pub fn row(&mut self, mark: Option<Mark>, cells: impl IntoIterator<Item = Cell>) {
        let cells: Vec<Cell> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.head.len(), "{cells:?}");
        self.rows.push((mark, cells));
    }
}

/// Letters, digits and dashes of a text, for links.
pub fn identifier(text: &str) -> String {
    let letters = text.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' });
    letters.collect::<String>().trim_matches('-').to_owned()
}
