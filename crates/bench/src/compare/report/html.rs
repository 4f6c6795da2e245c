//! A report as one HTML page.
//!
//! [HT1] The page is self-contained: style and plots are inside, there are no scripts, and its policy forbids scripts and requests.
//! [HT2] The page is also well-formed XML, so a strict parser can check it: every element is closed; [`Writer`] escapes every text and
//!       attribute. Only plots bypass it, and their library escapes text.
//! [HT3] Only tables may be wider than the window, with their own scroll bars. Plots have a `viewBox` and no size.
//! [HT4] Colours are style sheet variables with a light and a dark value; text repeats what colours mean.

use super::document::{Block, Cell, Colour, Document, Grid, Mark, Plot};

const STYLE: &str = include_str!("style.css");
/// [HT1]
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Cells with more characters may wrap.
const LONG: usize = 36;

/// The page.
pub fn page(document: &Document) -> String {
    let mut page = Writer(String::from("<!DOCTYPE html>\n"));
    page.element("html", &[("lang", "en"), ("xmlns", "http://www.w3.org/1999/xhtml")], |page| {
        page.element("head", &[], |page| {
            page.empty("meta", &[("charset", "utf-8")]);
            page.empty("meta", &[("http-equiv", "Content-Security-Policy"), ("content", POLICY)]);
            page.empty("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
            page.empty("meta", &[("name", "color-scheme"), ("content", "light dark")]);
            page.leaf("title", &[], &document.title);
            page.element("style", &[], |page| page.raw(STYLE));
        });
        page.element("body", &[], |page| {
            page.element("header", &[], |page| page.leaf("h1", &[], &document.title));
            contents(page, document);
            page.element("main", &[], |page| blocks(page, &document.blocks));
        });
    });
    page.0
}

fn contents(page: &mut Writer, document: &Document) {
    page.element("nav", &[("aria-label", "Chapters")], |page| {
        page.element("ol", &[], |page| {
            for block in &document.blocks {
                if let Block::Chapter { id, title } = block {
                    page.element("li", &[], |page| page.leaf("a", &[("href", &format!("#{id}"))], title));
                }
            }
        });
    });
}

fn blocks(page: &mut Writer, blocks: &[Block]) {
    for block in blocks {
        match block {
            Block::Chapter { id, title } => page.leaf("h2", &[("id", id)], title),
            Block::Section(title) => page.leaf("h3", &[], title),
            Block::Paragraph(text) => page.leaf("p", &[], text),
            Block::Warning(text) => page.leaf("p", &[("class", "warning"), ("role", "note")], text),
            Block::List(items) => page.element("ul", &[], |page| items.iter().for_each(|item| page.leaf("li", &[], item))),
            Block::Grid(grid) => table(page, grid),
            Block::Plots { legend, plots } => figures(page, legend, plots),
            Block::Fold { id, summary, tag, blocks } => fold(page, id, summary, tag.as_ref(), blocks),
        }
    }
}

fn fold(page: &mut Writer, id: &str, summary: &str, tag: Option<&(Mark, String)>, behind: &[Block]) {
    page.element("details", &[("id", id)], |page| {
        page.element("summary", &[], |page| {
            page.leaf("span", &[("class", "name")], summary);
            if let Some((mark, text)) = tag {
                page.leaf("span", &[("class", mark.class())], text);
            }
        });
        blocks(page, behind);
    });
}

fn table(page: &mut Writer, grid: &Grid) {
    // Outside the table, which can be wider than the window.
    if !grid.caption.is_empty() {
        page.leaf("p", &[("class", "caption")], &grid.caption);
    }
    // Keyboard users can scroll a region only if it can have the focus.
    page.element("div", &[("class", "scroll"), ("tabindex", "0"), ("role", "region"), ("aria-label", &grid.caption)], |page| {
        page.element("table", &[], |page| {
            let class = |column: usize| if grid.texts.contains(&column) { "text" } else { "figure" };
            page.element("thead", &[], |page| {
                page.element("tr", &[], |page| {
                    for (column, name) in grid.head.iter().enumerate() {
                        page.leaf("th", &[("scope", "col"), ("class", class(column))], name);
                    }
                });
            });
            page.element("tbody", &[], |page| {
                for (mark, cells) in &grid.rows {
                    page.element("tr", &mark.map_or(vec![], |mark| vec![("class", mark.class())]), |page| {
                        for (column, cell) in cells.iter().enumerate() {
                            let long = if cell.text.chars().count() > LONG { "long" } else { "" };
                            let classes = [class(column), long, cell.mark.map_or("", Mark::class)];
                            let classes = classes.into_iter().filter(|class| !class.is_empty()).collect::<Vec<_>>().join(" ");
                            let (name, scope) = if column == 0 { ("th", vec![("scope", "row")]) } else { ("td", vec![]) };
                            let attributes = [scope, vec![("class", classes.as_str())]].concat();
                            page.element(name, &attributes, |page| content(page, cell));
                        }
                    });
                }
            });
        });
    });
}

fn content(page: &mut Writer, cell: &Cell) {
    match &cell.link {
        Some(link) => page.leaf("a", &[("href", &format!("#{link}"))], &cell.text),
        None => page.text(&cell.text),
    }
}

fn figures(page: &mut Writer, legend: &[(Colour, String)], plots: &[Plot]) {
    page.element("div", &[("class", "plots")], |page| {
        if !legend.is_empty() {
            page.element("ul", &[("class", "legend")], |page| {
                for (colour, name) in legend {
                    page.element("li", &[], |page| {
                        page.leaf("i", &[("style", &format!("background:{}", colour.variable())), ("aria-hidden", "true")], "");
                        page.text(name);
                    });
                }
            });
        }
        for plot in plots {
            page.element("figure", &[], |page| {
                page.leaf("figcaption", &[], &plot.title);
                page.raw(&plot.svg);
            });
        }
    });
}

impl Colour {
    /// Name of the style sheet variable.
    pub fn variable(self) -> String {
        format!("var(--c{})", self.0)
    }
}

/// Writes elements. Text and attributes are escaped by [`escaped`] ([HT2]).
struct Writer(String);

impl Writer {
    fn open(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.0 += &format!("<{name}");
        for (attribute, value) in attributes {
            self.0 += &format!(" {attribute}=\"{}\"", escaped(value));
        }
    }

    /// An element whose content is written by `content`.
    fn element(&mut self, name: &str, attributes: &[(&str, &str)], content: impl FnOnce(&mut Self)) {
        self.open(name, attributes);
        self.0.push('>');
        content(self);
        self.0 += &format!("</{name}>");
        // A line break inside inline text would become a space.
        if !["a", "i", "span"].contains(&name) {
            self.0.push('\n');
        }
    }

    /// An element with text.
    fn leaf(&mut self, name: &str, attributes: &[(&str, &str)], text: &str) {
        self.element(name, attributes, |page| page.text(text));
    }

    /// A void element of HTML.
    fn empty(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.open(name, attributes);
        self.0 += "/>\n";
    }

    fn text(&mut self, text: &str) {
        self.0 += &escaped(text);
    }

    /// Raw markup: a plot from its library, and the style sheet, in which HTML has no escapes.
    fn raw(&mut self, markup: &str) {
        self.0 += markup;
    }
}

/// Escapes markup in a text. Control characters, which XML forbids, become their picture symbols.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '&' => escaped += "&amp;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            '\n' | '\t' => escaped.push(letter),
            '\u{0}'..'\u{20}' => escaped.push(char::from_u32(letter as u32 + 0x2400).unwrap_or('\u{fffd}')),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            _ => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_markup() {
        let hostile = "<script>alert('1 & \"2\"')</script>\u{0}\u{1b}";
        assert_eq!(escaped(hostile), "&lt;script&gt;alert(&#39;1 &amp; &quot;2&quot;&#39;)&lt;/script&gt;␀␛");
        let mut grid = Grid::new(hostile, &[0], [hostile, "n"]);
        grid.row(Some(Mark::Loss), [Cell::linked(hostile, hostile), Cell::marked(hostile, Mark::Open)]);
        let plots = vec![Plot { title: hostile.into(), svg: "<svg/>".into() }];
        let inner = vec![Block::Paragraph(hostile.into()), Block::Warning(hostile.into()), Block::List(vec![hostile.into()])];
        let blocks = vec![
            Block::Chapter { id: hostile.into(), title: hostile.into() },
            Block::Section(hostile.into()),
            Block::Grid(grid),
            Block::Plots { legend: vec![(Colour(0), hostile.into())], plots },
            Block::Fold { id: "f".into(), summary: hostile.into(), tag: Some((Mark::Win, hostile.into())), blocks: inner },
        ];
        let page = page(&Document { title: hostile.into(), blocks });
        assert!(!page.contains("<script"), "{page}");
        let tree = parsed(&page);
        assert!(tree.descendants().filter(|node| node.is_text()).any(|node| node.text() == Some("<script>alert('1 & \"2\"')</script>␀␛")));
    }

    #[test]
    fn the_style_sheet_is_text_for_html_and_for_xml() {
        assert!(!STYLE.contains(['<', '&']), "it is not escaped");
        assert!(!STYLE.contains("url(") && !STYLE.contains("@import"), "[HT1]");
        let page = page(&Document::default());
        let style =
            parsed(&page).descendants().find(|node| node.tag_name().name() == "style").and_then(|node| node.text().map(str::to_owned));
        assert_eq!(style.as_deref(), Some(STYLE));
    }

    /// Parses the page with a strict parser.
    fn parsed(page: &str) -> roxmltree::Document<'_> {
        let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
        roxmltree::Document::parse_with_options(page, options).unwrap_or_else(|error| panic!("{error}: {page}"))
    }
}
