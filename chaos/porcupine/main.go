// The second opinion: reads a history (JSON lines; see crates/history/src/record.rs) and asks Porcupine
// about each key. Prints one line for each key that is not fine: "bad KEY" or "unknown KEY".
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

type record struct {
	Process  uint32          `json:"process"`
	Op       string          `json:"op"`
	Key      string          `json:"key"`
	Value    textOrWord      `json:"value"`
	By       textOrWord      `json:"by"`
	From     int             `json:"from"`
	To       int             `json:"to"`
	Word     int             `json:"word"`
	Expected uint64          `json:"expected"`
	New      uint64          `json:"new"`
	Call     int64           `json:"call"`
	Return   *int64          `json:"return"`
	Answer   json.RawMessage `json:"answer"`
}

// A text, or a number of 64 bits with or without a sign.
type textOrWord struct {
	text string
	word uint64
}

func (t *textOrWord) UnmarshalJSON(from []byte) error {
	if json.Unmarshal(from, &t.text) == nil || json.Unmarshal(from, &t.word) == nil {
		return nil
	}
	var signed int64
	err := json.Unmarshal(from, &signed)
	t.word = uint64(signed)
	return err
}

// Words of a chunk and what lies between them, as in crates/history/src/chunk.rs.
type chunk [9]uint64

// Nothing lies between the second word and the third.
const emptyCell = 3

// What a key holds: a text, or a chunk.
type state struct {
	there bool
	value string
	cells chunk
}

// What a client was answered, as one text; empty if nobody knows.
type seen string

func (r *record) seen() (seen, error) {
	if r.Return == nil {
		return "", nil
	}
	var word string
	if json.Unmarshal(r.Answer, &word) == nil {
		return seen(word), nil
	}
	var one struct {
		Int   *int64  `json:"int"`
		Value *string `json:"value"`
		Cells *chunk  `json:"cells"`
	}
	if err := json.Unmarshal(r.Answer, &one); err != nil {
		return "", err
	}
	if one.Int != nil {
		return number(*one.Int), nil
	}
	if one.Value != nil {
		return text(*one.Value), nil
	}
	if one.Cells != nil {
		return words(*one.Cells), nil
	}
	return "", fmt.Errorf("answer %s", r.Answer)
}

func number(n int64) seen { return seen("int " + strconv.FormatInt(n, 10)) }
func text(s string) seen  { return seen("value " + s) }
func words(c chunk) seen  { return seen(fmt.Sprint("cells ", c)) }
func word(n uint64) seen  { return number(int64(n)) }

func (s state) seen() seen {
	if !s.there {
		return "nil"
	}
	return text(s.value)
}

func holds(text string) state { return state{there: true, value: text} }

func apply(s state, r *record) (state, seen) {
	switch r.Op {
	case "get":
		return s, s.seen()
	case "set":
		return holds(r.Value.text), "ok"
	case "setnx":
		if s.there {
			return s, "nil"
		}
		return holds(r.Value.text), "ok"
	case "del":
		if s.there {
			return state{}, number(1)
		}
		return state{}, number(0)
	case "incr":
		n := int64(0)
		if s.there {
			var err error
			if n, err = strconv.ParseInt(s.value, 10, 64); err != nil {
				n = math.MinInt64 / 2
			}
		}
		n += int64(r.By.word)
		return holds(strconv.FormatInt(n, 10)), number(n)
	case "append":
		whole := s.value + r.Value.text
		return holds(whole), number(int64(len(whole)))
	case "getdel":
		return state{}, s.seen()
	case "read", "write":
		var read chunk
		for cell := 2 * r.From; cell <= 2*r.To; cell++ {
			if cell == emptyCell {
				continue
			}
			read[cell] = s.cells[cell]
			if r.Op == "write" {
				s.cells[cell] = r.Value.word
			}
		}
		if r.Op == "write" {
			return s, "ok"
		}
		return s, words(read)
	case "swap":
		old := s.cells[2*r.Word]
		if old == r.Expected {
			s.cells[2*r.Word] = r.New
		}
		return s, word(old)
	case "add":
		old := s.cells[2*r.Word]
		s.cells[2*r.Word] += r.By.word
		return s, word(old)
	}
	panic("operation " + r.Op)
}

var model = porcupine.Model{
	Init: func() interface{} { return state{} },
	Step: func(s, input, output interface{}) (bool, interface{}) {
		after, said := apply(s.(state), input.(*record))
		known := output.(seen)
		return known == "" || known == said, after
	},
}

func read(path string) (map[string][]porcupine.Operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	keys := map[string][]porcupine.Operation{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	for line := 1; lines.Scan(); line++ {
		r := &record{}
		if err := json.Unmarshal(lines.Bytes(), r); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		said, err := r.seen()
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		end := int64(math.MaxInt64)
		if r.Return != nil {
			end = *r.Return
		} else if r.Op == "get" || r.Op == "read" {
			continue // it tells nothing
		}
		keys[r.Key] = append(keys[r.Key], porcupine.Operation{
			ClientId: int(r.Process), Input: r, Call: r.Call, Output: said, Return: end,
		})
	}
	return keys, lines.Err()
}

func main() {
	timeout := flag.Duration("timeout", time.Minute, "for all keys together")
	flag.Parse()
	keys, err := read(flag.Arg(0))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	names := []string{}
	for name := range keys {
		names = append(names, name)
	}
	sort.Strings(names)
	until := time.Now().Add(*timeout)
	for _, name := range names {
		left := time.Until(until)
		if left <= 0 {
			left = time.Nanosecond
		}
		switch porcupine.CheckOperationsTimeout(model, keys[name], left) {
		case porcupine.Illegal:
			fmt.Println("bad", name)
		case porcupine.Unknown:
			fmt.Println("unknown", name)
		}
	}
}
