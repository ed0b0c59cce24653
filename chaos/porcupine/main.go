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
	Process uint32          `json:"process"`
	Op      string          `json:"op"`
	Key     string          `json:"key"`
	Value   string          `json:"value"`
	By      int64           `json:"by"`
	Call    int64           `json:"call"`
	Return  *int64          `json:"return"`
	Answer  json.RawMessage `json:"answer"`
}

// What a key holds.
type state struct {
	there bool
	value string
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
	return "", fmt.Errorf("answer %s", r.Answer)
}

func number(n int64) seen { return seen("int " + strconv.FormatInt(n, 10)) }
func text(s string) seen  { return seen("value " + s) }

func (s state) seen() seen {
	if !s.there {
		return "nil"
	}
	return text(s.value)
}

func apply(s state, r *record) (state, seen) {
	switch r.Op {
	case "get":
		return s, s.seen()
	case "set":
		return state{true, r.Value}, "ok"
	case "setnx":
		if s.there {
			return s, "nil"
		}
		return state{true, r.Value}, "ok"
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
		n += r.By
		return state{true, strconv.FormatInt(n, 10)}, number(n)
	case "append":
		whole := s.value + r.Value
		return state{true, whole}, number(int64(len(whole)))
	case "getdel":
		return state{}, s.seen()
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
		} else if r.Op == "get" {
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
