package tool_test

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/protocol"
)

// noise is an image that no format makes small.
func noise(w, h int) *image.NRGBA {
	m := image.NewNRGBA(image.Rect(0, 0, w, h))
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range m.Pix {
		m.Pix[i] = byte(rnd.Uint32())
	}
	return m
}

func (b *bench) picture(name string, encode func(*bytes.Buffer) error) []byte {
	b.t.Helper()
	var buf bytes.Buffer
	require.NoError(b.t, encode(&buf))
	b.write(name, buf.String())
	return buf.Bytes()
}

// shown runs read_image and returns its output, and the type and bytes of the image.
func (b *bench) shown(path string) (out, kind string, data []byte) {
	b.t.Helper()
	res := b.run(b.call("read_image", object{"path": path}))
	require.Equal(b.t, protocol.Completed, res.StopReason, res.Output)
	require.Len(b.t, res.Images, 1)
	require.Less(b.t, len(protocol.Encode(res)), protocol.MaxBody)
	head, enc, ok := strings.Cut(res.Images[0], ";base64,")
	require.True(b.t, ok)
	data, err := base64.StdEncoding.DecodeString(enc)
	require.NoError(b.t, err)
	return res.Output, strings.TrimPrefix(head, "data:"), data
}

func TestReadImage_SmallOnesAreShownAsTheyAre(t *testing.T) {
	b := setup(t)
	m := noise(40, 30)
	for name, encode := range map[string]func(*bytes.Buffer) error{
		"png":  func(w *bytes.Buffer) error { return png.Encode(w, m) },
		"jpeg": func(w *bytes.Buffer) error { return jpeg.Encode(w, m, nil) },
		"gif":  func(w *bytes.Buffer) error { return gif.Encode(w, m, nil) },
	} {
		file := b.picture("dir/a."+name, encode)
		out, kind, data := b.shown("dir/a." + name)
		require.Equal(t, "image/"+name, kind)
		require.Equal(t, file, data)
		require.Contains(t, out, "40 × 30")
	}
	webp := "RIFF\x1a\x00\x00\x00WEBPVP8L\x0d\x00\x00\x00/\x00\x00\x00\x10\x07\x10\x11\x11\x88\x88\xfe\x07\x00"
	b.write("a.webp", webp)
	_, kind, data := b.shown("a.webp")
	require.Equal(t, "image/webp", kind)
	require.Equal(t, webp, string(data))
}

func TestReadImage_LargeOnesAreScaled(t *testing.T) {
	b := setup(t)
	m := noise(1200, 900)
	b.picture("big.png", func(w *bytes.Buffer) error { return png.Encode(w, m) })
	out, kind, data := b.shown("big.png")
	require.Equal(t, "image/jpeg", kind)
	require.Contains(t, out, "scaled to")
	cfg, err := jpeg.DecodeConfig(bytes.NewReader(data))
	require.NoError(t, err)
	require.InDelta(t, 4.0/3, float64(cfg.Width)/float64(cfg.Height), 0.01)

	wide := image.NewNRGBA(image.Rect(0, 0, 9000, 3)) // few bytes, and longer than providers take
	for x := range 9000 {
		wide.Set(x, 1, color.NRGBA{R: 255, A: 255})
	}
	b.picture("wide.png", func(w *bytes.Buffer) error { return png.Encode(w, wide) })
	_, _, data = b.shown("wide.png")
	cfg, err = jpeg.DecodeConfig(bytes.NewReader(data))
	require.NoError(t, err)
	require.Equal(t, 2048, cfg.Width)
}

func TestReadImage_SaysWhyNot(t *testing.T) {
	b := setup(t)
	b.write("a.txt", "text")
	require.Contains(t, b.fails("read_image", object{"path": "a.txt"}), "a.txt is no image that can be shown")
	require.Contains(t, b.fails("read_image", object{"path": "no.png"}), "no.png does not exist")
	require.Contains(t, b.fails("read_image", object{"path": "../x.png"}), "workspace")
	b.write("broken.png", "\x89PNG\r\n\x1a\n"+strings.Repeat("x", 800<<10))
	require.Contains(t, b.fails("read_image", object{"path": "broken.png"}), "bytes are too many")
	b.write("big.webp", "RIFF\x00\x00\x00\x00WEBPVP8 "+strings.Repeat("x", 800<<10))
	require.Contains(t, b.fails("read_image", object{"path": "big.webp"}), "convert it to a jpeg")
	var bomb bytes.Buffer
	require.NoError(t, png.Encode(&bomb, image.NewGray(image.Rect(0, 0, 9000, 9000))))
	b.write("bomb.png", bomb.String())
	require.Contains(t, b.fails("read_image", object{"path": "bomb.png"}), "pixels are too many to scale")
}
