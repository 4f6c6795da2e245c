//! The content of a report, independent of HTML or Markdown.

/// A report.
#[derive(Debug, Default)]
pub struct Document {
    /// Its name.
    pub title: String,
    /// Blocks in order.
    pub blocks: Vec<Block>,
}

/// A block of a report.
#[derive(Debug)]
pub enum Block {
    /// Start of a chapter; the page links to it.
    Chapter {
        /// Anchor for links.
        id: String,
        /// Its title.
        title: String,
    },
    /// Start of a section in a chapter.
    Section(String),
    /// Text.
    Paragraph(String),
    /// Text that is highlighted.
    Warning(String),
    /// A list of sentences.
    List(Vec<String>),
    /// A table.
    Grid(Grid),
    /// Plots with a common legend, side by side if there is room.
    Plots {
        /// Colours and names, shared by all plots.
        legend: Vec<(Colour, String)>,
        /// The plots.
        plots: Vec<Plot>,
    },
    /// A collapsible block: a summary and its content.
    Fold {
        /// Anchor for links.
        id: String,
        /// Always visible.
        summary: String,
        /// The result, beside the summary.
        tag: Option<(Mark, String)>,
        /// Content of the fold.
        blocks: Vec<Block>,
    },
}

/// A colour of the style sheet, with a light and a dark variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Colour(pub u8);

/// A plot.
#[derive(Debug)]
pub struct Plot {
    /// Title, also the text for screen readers.
    pub title: String,
    /// An `svg` element without its own size.
    pub svg: String,
}

/// Meaning of a row or cell, in addition to its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// TandemFS loses.
    Loss,
    /// TandemFS wins.
    Win,
    /// Undecided.
    Open,
    /// A row of TandemFS.
    Ours,
}

impl Mark {
    /// CSS class.
    pub fn class(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Win => "win",
            Self::Open => "open",
            Self::Ours => "ours",
        }
    }
}

/// A table cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// Its text.
    pub text: String,
    /// Its meaning.
    pub mark: Option<Mark>,
    /// Anchor of the [`Block::Chapter`] or [`Block::Fold`] with details.
    pub link: Option<String>,
}

impl Cell {
    /// A cell with a meaning.
    pub fn marked(text: impl Into<String>, mark: Mark) -> Self {
        Self { text: text.into(), mark: Some(mark), link: None }
    }

    /// A cell with a link.
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
    /// Caption above the table.
    pub caption: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// Indices of text columns; the other columns are numbers.
    pub texts: &'static [usize],
    /// Rows: an optional meaning of the whole row, and its cells.
    pub rows: Vec<(Option<Mark>, Vec<Cell>)>,
}

impl Grid {
    /// An empty table.
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

/// Letters, digits and dashes of a text, for anchors.
pub fn identifier(text: &str) -> String {
    let letters = text.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' });
    letters.collect::<String>().trim_matches('-').to_owned()
}
