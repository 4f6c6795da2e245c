//! What is on the screen and what keys do to it. It knows no terminal: it draws into a frame and is told keys.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Borders, Cell, Gauge, Paragraph, Row, Table, TableState};

use super::columns::{self, CLIENTS, Column, OPERATIONS};
use super::sample::{Client, Named, Sample, View, Zone};
use super::text;

const KEYS: &str = "q quit  Tab other table  Up Down choose  s sort  Enter that client  Esc all";

/// What a key asks of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Draw anew.
    Draw,
    /// End.
    Quit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Focus {
    Operations,
    Clients,
}

/// The state of the screen.
pub struct Screen {
    named: Named,
    before: Sample,
    now: Sample,
    /// The process that is shown alone.
    client: Option<i64>,
    focus: Focus,
    /// Columns by which the tables are sorted.
    sorted_by: (usize, usize),
    /// The chosen rows, by what they are: they move when others become busier.
    chosen: (Option<String>, Option<u64>),
}

impl Screen {
    /// With a first answer, and nothing that happened since.
    pub fn new(named: Named, first: Sample, client: Option<i64>) -> Self {
        Self { named, before: first.clone(), now: first, client, focus: Focus::Operations, sorted_by: text::BUSIEST, chosen: (None, None) }
    }

    /// Takes the next answer.
    pub fn take(&mut self, next: Sample) {
        self.before = std::mem::replace(&mut self.now, next);
    }

    fn view(&self) -> Result<View, String> {
        View::between(&self.named, &self.before, &self.now, self.client)
    }

    /// Obeys a key.
    pub fn key(&mut self, key: KeyEvent) -> Wish {
        match key.code {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Wish::Quit,
            KeyCode::Esc | KeyCode::Backspace => self.client = None,
            KeyCode::Tab | KeyCode::BackTab | KeyCode::Left | KeyCode::Right => {
                self.focus = if self.focus == Focus::Operations { Focus::Clients } else { Focus::Operations };
            }
            KeyCode::Char('s') => match self.focus {
                Focus::Operations => self.sorted_by.0 = columns::next_order(OPERATIONS, self.sorted_by.0),
                Focus::Clients => self.sorted_by.1 = columns::next_order(CLIENTS, self.sorted_by.1),
            },
            KeyCode::Up => self.choose(-1),
            KeyCode::Down => self.choose(1),
            KeyCode::Enter if self.focus == Focus::Clients => {
                let clients = self.clients();
                if let Some(row) = row(&clients, |client| Some(client.connection) == self.chosen.1) {
                    self.client = Some(clients[row].process_id);
                }
            }
            _ => {}
        }
        Wish::Draw
    }

    /// Clients, also while one is shown that has left.
    fn clients(&self) -> Vec<Client> {
        View::between(&self.named, &self.before, &self.now, None)
            .map_or_else(|_| Vec::new(), |view| columns::clients(&view, self.sorted_by.1))
    }

    fn choose(&mut self, step: isize) {
        let moved = |row: Option<usize>, rows: usize| match row {
            None if rows == 0 => None,
            None => Some(0),
            Some(row) => row.checked_add_signed(step).filter(|row| *row < rows).or(Some(row)),
        };
        match self.focus {
            Focus::Operations => {
                let kinds = self.view().map_or_else(|_| Vec::new(), |view| columns::operations(&view, self.sorted_by.0));
                let to = moved(row(&kinds, |(name, _)| Some(name) == self.chosen.0.as_ref()), kinds.len());
                self.chosen.0 = to.map(|row| kinds[row].0.clone());
            }
            Focus::Clients => {
                let clients = self.clients();
                let to = moved(row(&clients, |client| Some(client.connection) == self.chosen.1), clients.len());
                self.chosen.1 = to.map(|row| clients[row].connection);
            }
        }
    }

    /// Draws all of it.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let (shown, notice) = match self.view() {
            Ok(view) => (view, None),
            Err(why) => (View::between(&self.named, &self.before, &self.now, None).unwrap_or_default(), Some(why)),
        };
        let zones =
            [("memory zone", &shown.memory_zone), ("block zone", &shown.block_zone)].map(|(name, zone)| (name, zone, zone.total_bytes > 0));
        let zone_lines = zones.iter().filter(|(.., is_there)| *is_there).count() as u16;
        let flow_lines = text::flow(&shown).into_iter().chain([text::write_back(&shown)]).chain(text::door(&shown));
        let flow_lines: Vec<Line<'_>> = flow_lines.map(Line::from).collect();
        let client_lines = self.clients().len().min(8) as u16 + 3;
        let [head, of_zones, flow, of_operations, of_clients, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(zone_lines),
            Constraint::Length(flow_lines.len() as u16),
            Constraint::Min(5),
            Constraint::Max(client_lines),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(text::head(&shown)).style(Style::new().add_modifier(Modifier::BOLD)), head);
        let lines = Layout::vertical(vec![Constraint::Length(1); usize::from(zone_lines)]).split(of_zones);
        for ((name, zone, _), line) in zones.iter().filter(|(.., is_there)| *is_there).zip(lines.iter()) {
            draw_zone(frame, name, zone, *line);
        }
        frame.render_widget(Paragraph::new(flow_lines), flow);

        let kinds = columns::operations(&shown, self.sorted_by.0);
        let chosen = row(&kinds, |(name, _)| Some(name) == self.chosen.0.as_ref());
        let title = self.client.map_or_else(|| "operations".to_owned(), |process_id| format!("operations of process {process_id}"));
        let title = notice.map_or(title, |why| why.to_string());
        draw_table(frame, of_operations, &title, OPERATIONS, &kinds, (self.sorted_by.0, chosen, self.focus == Focus::Operations));
        let clients = self.clients();
        let chosen = row(&clients, |client| Some(client.connection) == self.chosen.1);
        draw_table(
            frame,
            of_clients,
            "clients of the direct door",
            CLIENTS,
            &clients,
            (self.sorted_by.1, chosen, self.focus == Focus::Clients),
        );
        frame.render_widget(Paragraph::new(KEYS).style(Style::new().add_modifier(Modifier::DIM)), foot);
    }
}

fn row<R>(rows: &[R], is_chosen: impl Fn(&R) -> bool) -> Option<usize> {
    rows.iter().position(is_chosen)
}

fn draw_zone(frame: &mut Frame<'_>, name: &str, zone: &Zone, line: Rect) {
    let [left, right] = Layout::horizontal([Constraint::Length(13), Constraint::Min(10)]).areas(line);
    frame.render_widget(Paragraph::new(name), left);
    let ratio = (zone.used_bytes as f64 / zone.total_bytes as f64).clamp(0.0, 1.0);
    let style = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Gauge::default().ratio(ratio).label(text::of_zone(zone)).gauge_style(style), right);
}

/// `how`: the column that it is sorted by, the chosen row, whether keys go to it.
fn draw_table<R>(frame: &mut Frame<'_>, area: Rect, title: &str, columns: &[Column<R>], rows: &[R], how: (usize, Option<usize>, bool)) {
    let (sorted_by, chosen, has_keys) = how;
    let cell = |column: &Column<R>, text: String| {
        let alignment = if column.is_text { Alignment::Left } else { Alignment::Right };
        Cell::from(Text::from(text).alignment(alignment))
    };
    let heads = columns.iter().enumerate().map(|(index, column)| {
        let style = if index == sorted_by { Style::new().add_modifier(Modifier::UNDERLINED) } else { Style::new() };
        cell(column, column.title.into()).style(style.add_modifier(Modifier::BOLD))
    });
    let lines = rows.iter().map(|row| Row::new(columns.iter().map(|column| cell(column, (column.cell)(row)))));
    let border = if has_keys { Style::new().add_modifier(Modifier::BOLD) } else { Style::new().add_modifier(Modifier::DIM) };
    let table = Table::new(lines, columns.iter().map(|column| Constraint::Length(column.width)))
        .header(Row::new(heads))
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .block(Block::new().borders(Borders::TOP).border_style(border).title(format!(" {title} ")));
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(chosen));
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::sample::tests::two_seconds;
    use super::*;

    fn screen() -> Screen {
        let (named, before, after) = two_seconds();
        let mut screen = Screen::new(named, before, None);
        screen.take(after);
        screen
    }

    fn drawn(screen: &Screen, width: u16, height: u16) -> (Vec<String>, Vec<usize>) {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| screen.draw(frame)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let line = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        // Chosen rows, not the gauges above.
        let is_chosen = |y: &u16| *y > 3 && buffer[(0, *y)].modifier.contains(Modifier::REVERSED);
        ((0..height).map(line).collect(), (0..height).filter(is_chosen).map(usize::from).collect())
    }

    fn press(screen: &mut Screen, codes: &[KeyCode]) {
        codes.iter().for_each(|code| assert_eq!(screen.key(KeyEvent::from(*code)), Wish::Draw));
    }

    #[test]
    fn all_is_on_a_screen_of_eighty_by_twenty_four() {
        let (lines, chosen) = drawn(&screen(), 80, 24);
        let all = lines.join("\n");
        assert!(lines[0].starts_with("disk.image on /mnt (strict)"), "{all}");
        assert!(KEYS.len() <= 80 && lines.iter().all(|line| line.chars().count() <= 80), "{all}");
        let heads = OPERATIONS.iter().map(|column| column.title).chain(CLIENTS.iter().map(|column| column.title));
        heads.for_each(|head| assert!(all.contains(head), "{head} is cut off: {all}"));
        for what in ["memory zone", "750 B of 1000 B used", "write-back a second", "2 clients now", "OPERATION", "PROCESS", "q quit"] {
            assert!(all.contains(what), "{what}: {all}");
        }
        let at = |what: &str| lines.iter().position(|line| line.trim_start().starts_with(what)).unwrap_or_else(|| panic!("{what}: {all}"));
        assert!(at("write ") < at("read "), "the busiest comes first: {all}");
        assert!(at("42") < at("41") && lines[at("42")].ends_with(" 3"), "{all}");
        assert!(all.contains("leases for stores: 3 of 1 client, 8 KiB kept back"), "{all}");
        assert!(lines[at("write ")].contains("500") && lines[at("write ")].contains("2.0 us"), "{all}");
        assert_eq!(chosen, [] as [usize; 0]);
    }

    #[test]
    fn keys_choose_sort_and_show_one_client() {
        let mut screen = screen();
        press(&mut screen, &[KeyCode::Down, KeyCode::Down, KeyCode::Down]);
        let (lines, chosen) = drawn(&screen, 80, 24);
        assert!(chosen.len() == 1 && lines[chosen[0]].starts_with("read"), "the last row stays chosen: {lines:#?}");
        press(&mut screen, &[KeyCode::Char('s'), KeyCode::Char('s'), KeyCode::Char('s'), KeyCode::Char('s')]);
        let (lines, chosen) = drawn(&screen, 80, 24);
        assert!(lines[chosen[0]].starts_with("read"), "also when rows are sorted otherwise: {lines:#?}");
        let names: Vec<&String> = lines.iter().filter(|line| line.starts_with("read ") || line.starts_with("write ")).collect();
        assert!(names[0].starts_with("read"), "by name: {lines:#?}");
        press(&mut screen, &[KeyCode::Tab, KeyCode::Down, KeyCode::Enter]);
        let (lines, _) = drawn(&screen, 80, 24);
        assert!(lines[0].contains("process 42") && lines.iter().any(|line| line.contains("operations of process 42")), "{lines:#?}");
        assert!(lines.iter().any(|line| line.starts_with("write ") && line.contains("200")), "{lines:#?}");
        press(&mut screen, &[KeyCode::Esc]);
        assert!(!drawn(&screen, 80, 24).0[0].contains("process"));
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!((screen.key(KeyCode::Char('q').into()), screen.key(control)), (Wish::Quit, Wish::Quit));
    }

    #[test]
    fn a_client_that_has_left_is_said_to_have() {
        let (named, before, _) = two_seconds();
        let screen = Screen::new(named, before, Some(99));
        let all = drawn(&screen, 80, 24).0.join("\n");
        assert!(all.contains("process 99 is no client"), "{all}");
    }

    #[test]
    fn no_size_of_a_terminal_is_too_small() {
        for (width, height) in [(1, 1), (20, 5), (80, 8), (300, 100)] {
            drawn(&screen(), width, height);
        }
    }
}
