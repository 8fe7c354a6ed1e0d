package llm_test

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"rookery/internal/llm"
	"rookery/protocol"
)

// Whatever comes, reading ends, and how the bytes are cut does not matter.
func FuzzEvents(f *testing.F) {
	for _, r := range recordings(f) {
		f.Add([]byte(r.body))
	}
	f.Add([]byte("\ufeffdata: a\rdata: b\r\n\r\nevent: x\ndata:{}\ndata: [DONE]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		names, data, err := llm.Events(bytes.NewReader(b))
		names1, data1, err1 := llm.Events(iotest.OneByteReader(bytes.NewReader(b)))
		require.Error(t, err)
		require.Equal(t, err, err1)
		require.Equal(t, names, names1)
		require.Equal(t, data, data1)
	})
}

func FuzzDecodeChunk(f *testing.F) {
	for _, r := range recordings(f) {
		_, data, err := llm.Events(strings.NewReader(r.body))
		require.ErrorIs(f, err, io.EOF)
		for _, d := range data {
			f.Add("", []byte(d))
		}
	}
	f.Add("error", []byte(`{"error":{"code":1.5,"message":[]}}`))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		ok, err := llm.DecodeChunk(name, data)
		require.Equal(t, ok, err == nil)
	})
}

// Any stream keeps the discipline of partials and is completed only when it was finished.
func FuzzReply(f *testing.F) {
	for _, r := range recordings(f) {
		f.Add([]byte(r.body))
	}
	var cases []wireCase
	if load(f, "wire-cases.json", &cases) {
		for _, c := range cases {
			f.Add([]byte(c.Body))
		}
	}
	c := client(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		var ps []protocol.Payload
		o := llm.ReadReply(t.Context(), c, ask("go"), bytes.NewReader(b), func(p protocol.Payload) error {
			ps = append(ps, p)
			return nil
		})
		fold(t, o, ps)
		if o.Status == protocol.Completed {
			lower := bytes.ToLower(b) // encoding/json does not mind the case
			require.True(t, o.Finish != "" || bytes.Contains(lower, []byte("[done]")))
		}
	})
}

func TestEvents_AnEventHasABound(t *testing.T) {
	long := io.MultiReader(strings.NewReader("data: "), io.LimitReader(zeros{}, 40<<20))
	_, _, err := llm.Events(long)
	require.ErrorContains(t, err, "larger than 32 MiB")
	_, _, err = llm.Events(strings.NewReader(strings.Repeat("data: ,{}\n", 2000)))
	require.ErrorContains(t, err, "1024 lines")
	_, _, err = llm.Events(strings.NewReader(strings.Repeat("data: {}\n", 2000)))
	require.ErrorIs(t, err, io.EOF)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}
